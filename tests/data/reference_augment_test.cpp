// SPDX-License-Identifier: Apache-2.0
// RandAugment and random parts as TensorFlow makes them, see tests/golden/README.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/data/transforms.h"

namespace moesaic {
namespace {

TensorMap golden_augment() {
  return read_tensors(MOESAIC_TEST_SOURCE_DIR "/tests/golden/augment.safetensors");
}

/// Numbers whose first draws below `n` are these: pairs of n and the draw.
CounterRng drawing(const std::vector<std::pair<uint64_t, uint64_t>>& draws) {
  for (uint64_t position = 0;; ++position) {
    CounterRng rng(1, 2, position);
    bool all = true;
    for (const auto& [n, wanted] : draws) all = rng.randint(n) == wanted && all;
    if (all) return CounterRng(1, 2, position);
  }
}

/// Sharpness rounds means of thirteenths down. Where one is a whole number, TensorFlow's sum of
/// float32 products may lie below it, depending on the processor. [C, H, W]
at::Tensor means_at_an_edge(const at::Tensor& image) {
  at::Tensor weights = at::ones({1, 1, 3, 3}, at::kDouble);
  weights[0][0][1][1] = 5.0;
  const at::Tensor sums =
      at::conv2d(image.to(at::kDouble).unsqueeze(1), weights, {}, 1, 1).squeeze(1);
  return sums.fmod(13.0).eq(0);
}

TEST(ReferenceAugment, ChangesGiveItsBytes) {
  const TensorMap golden = golden_augment();
  const at::Tensor image = golden.at("image");
  const auto height = static_cast<uint64_t>(image.size(1));
  const auto width = static_cast<uint64_t>(image.size(2));
  std::set<std::string> tried;
  for (const auto& [name, wanted] : golden) {
    const size_t slash = name.find('/');
    const std::string change = name.substr(0, slash);
    if (slash == std::string::npos || change == "crop") continue;
    CounterRng rng = change == "cutout"    ? drawing({{height, 5}, {width, 11}})
                     : name.ends_with("-") ? drawing({{2, 1}})
                                           : drawing({{2, 0}});
    at::Tensor found = image.clone();
    std::ranges::find(rand_augment_ops(), change, &RandAugmentOp::name)
        ->apply({image.size(0), image.size(1), image.size(2), found.mutable_data_ptr<uint8_t>()},
                std::stod(name.substr(slash + 1)) / 10.0, rng);
    const at::Tensor differ = found.ne(wanted).logical_and_(
        change == "sharpness" ? means_at_an_edge(image).logical_not() : at::ones({}, at::kBool));
    EXPECT_EQ(differ.sum().item<int64_t>(), 0) << name;
    tried.insert(change);
  }
  EXPECT_EQ(tried.size(), rand_augment_ops().size());
}

// Pearson's statistic of two samples of equal size has k degrees of freedom where they are drawn
// alike: a mean of k and a deviation of sqrt(2 k).
TEST(ReferenceAugment, PartsAreDrawnAsOften) {
  const at::Tensor parts = golden_augment().at("crop/parts").to(torch::kLong).contiguous();
  const auto row = parts.accessor<int64_t, 2>();
  using Part = std::array<int64_t, 4>;
  std::map<Part, std::pair<double, double>> counts;
  int64_t total = 0;
  for (int64_t i = 0; i < parts.size(0); ++i) {
    counts[{row[i][0], row[i][1], row[i][2], row[i][3]}].first = static_cast<double>(row[i][4]);
    total += row[i][4];
  }
  for (int64_t i = 0; i < total; ++i) {
    CounterRng rng(5, 6, static_cast<uint64_t>(i));
    const Rectangle part = random_crop({}, 6, 9, rng);
    counts[{part.top, part.left, part.height, part.width}].second += 1.0;
  }
  double statistic = 0.0;
  for (const auto& [part, count] : counts) {
    statistic += std::pow(count.first - count.second, 2) / (count.first + count.second);
  }
  const auto k = static_cast<double>(counts.size());
  EXPECT_LT(statistic, k + 5 * std::sqrt(2 * k));
  EXPECT_GT(k, 100);
}

}  // namespace
}  // namespace moesaic
