// SPDX-License-Identifier: Apache-2.0
#include "support/synthetic_embeddings.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/file.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/tensors.h"

namespace moesaic::testing {
namespace {

constexpr int64_t kStandIns = 3;

/// Normal numbers, another stream for each purpose.
at::Tensor stand_in_normal(const StandInEmbeddings& options, std::vector<int64_t> shape,
                           uint64_t purpose) {
  return randn(std::move(shape), 100 * options.seed + purpose, at::kFloat);
}

/// [count, 1] in [min, max], from the normal distribution's function.
at::Tensor stand_in_strength(const StandInEmbeddings& options, double min, double max,
                             uint64_t purpose) {
  const at::Tensor normal = stand_in_normal(options, {options.count, 1}, purpose);
  return min + (max - min) * at::special_ndtr(normal);
}

}  // namespace

void write_stand_in_embeddings(const std::filesystem::path& file,
                               const StandInEmbeddings& options) {
  const at::Tensor directions =
      std::get<0>(at::linalg_qr(stand_in_normal(options, {options.width, 2 * kStandIns}, 1))).t();
  const at::Tensor centre = directions.narrow(0, 0, kStandIns);
  const at::Tensor signal = directions.narrow(0, kStandIns, kStandIns);
  const at::Tensor cluster = stand_in_strength(options, 0, kStandIns, 2)
                                 .squeeze(1)
                                 .floor()
                                 .clamp_max(kStandIns - 1)
                                 .to(at::kLong);
  const at::Tensor step = 1 + stand_in_normal(options, {options.count}, 3).gt(0).to(at::kLong);
  const at::Tensor y = stand_in_normal(options, {options.count, 1}, 4).sign();
  const at::Tensor epsilon = stand_in_normal(options, {options.count, 1}, 5).sign();
  const auto of = [](const at::Tensor& vectors, const at::Tensor& which) {
    return vectors.index_select(0, which.remainder(kStandIns));
  };
  const at::Tensor noise = stand_in_normal(options, {options.count, options.width}, 6) /
                           std::sqrt(static_cast<double>(options.width));
  const at::Tensor rows =
      10.0 *
      (stand_in_strength(options, 3.0, 4.0, 7) * of(centre, cluster) +
       y * stand_in_strength(options, 0.5, 2.0, 8) * of(signal, cluster) +
       epsilon * stand_in_strength(options, 0.5, 2.0, 9) * of(signal, cluster + step) + noise);
  write_tensors(
      file,
      {{"embeddings", rows}, {"label", y.squeeze(1).gt(0).to(at::kLong)}, {"language", cluster}},
      {{"classes", R"(["negative", "positive"])"},
       {"languages", R"(["stand-in 1", "stand-in 2", "stand-in 3"])"}});
}

std::filesystem::path write_stand_in_dataset(const std::filesystem::path& folder,
                                             const StandInEmbeddings& options) {
  write_stand_in_embeddings(folder / "stand-in.safetensors", options);
  write_atomic(folder / "stand-in.json",
               fmt::format(R"({{"name": "stand-in", "format": "embeddings", "paths": ["{}"],
                               "embeddings": {{"file": "stand-in.safetensors"}}}})",
                           folder.string()));
  return folder / "stand-in.json";
}

}  // namespace moesaic::testing
