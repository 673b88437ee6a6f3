// SPDX-License-Identifier: Apache-2.0
#include "support/synthetic_embeddings.h"

#include <fmt/format.h>

#include <cmath>

#include "moesaic/checkpoint/tensors.h"
#include "support/tensors.h"

namespace moesaic::testing {
namespace {

constexpr int64_t kLanguages = 3;

/// Normal numbers, another stream for each purpose.
at::Tensor synthetic_normal(const SyntheticEmbeddings& options, std::vector<int64_t> shape,
                            uint64_t purpose) {
  return randn(std::move(shape), 100 * options.seed + purpose, at::kFloat);
}

/// [count, 1] in [min, max], from the normal distribution's function.
at::Tensor synthetic_strength(const SyntheticEmbeddings& options, double min, double max,
                              uint64_t purpose) {
  const at::Tensor normal = synthetic_normal(options, {options.count, 1}, purpose);
  return min + (max - min) * at::special_ndtr(normal);
}

}  // namespace

void write_synthetic_embeddings(const std::filesystem::path& file,
                                const SyntheticEmbeddings& options) {
  const at::Tensor directions =
      std::get<0>(at::linalg_qr(synthetic_normal(options, {options.width, 2 * kLanguages}, 1))).t();
  const at::Tensor centre = directions.narrow(0, 0, kLanguages);
  const at::Tensor signal = directions.narrow(0, kLanguages, kLanguages);
  const at::Tensor cluster = synthetic_strength(options, 0, kLanguages, 2)
                                 .squeeze(1)
                                 .floor()
                                 .clamp_max(kLanguages - 1)
                                 .to(at::kLong);
  const at::Tensor step = 1 + synthetic_normal(options, {options.count}, 3).gt(0).to(at::kLong);
  const at::Tensor y = synthetic_normal(options, {options.count, 1}, 4).sign();
  const at::Tensor epsilon = synthetic_normal(options, {options.count, 1}, 5).sign();
  const auto of = [](const at::Tensor& vectors, const at::Tensor& which) {
    return vectors.index_select(0, which.remainder(kLanguages));
  };
  const at::Tensor noise = synthetic_normal(options, {options.count, options.width}, 6) /
                           std::sqrt(static_cast<double>(options.width));
  const at::Tensor rows =
      10.0 *
      (synthetic_strength(options, 3.0, 4.0, 7) * of(centre, cluster) +
       y * synthetic_strength(options, 0.5, 2.0, 8) * of(signal, cluster) +
       epsilon * synthetic_strength(options, 0.5, 2.0, 9) * of(signal, cluster + step) + noise);
  write_tensors(
      file,
      {{"embeddings", rows}, {"label", y.squeeze(1).gt(0).to(at::kLong)}, {"language", cluster}},
      {{"classes", R"(["negative", "positive"])"},
       {"languages", R"(["synthetic 1", "synthetic 2", "synthetic 3"])"}});
}

std::filesystem::path write_synthetic_dataset(const std::filesystem::path& folder,
                                              const SyntheticEmbeddings& options) {
  write_synthetic_embeddings(folder / "synthetic.safetensors", options);
  write_atomic(folder / "synthetic.json",
               fmt::format(R"({{"name": "synthetic", "format": "embeddings", "paths": ["{}"],
                               "embeddings": {{"file": "synthetic.safetensors"}}}})",
                           folder.string()));
  return folder / "synthetic.json";
}

}  // namespace moesaic::testing
