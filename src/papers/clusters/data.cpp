// SPDX-License-Identifier: Apache-2.0
// Data with cluster structure, generated when opened.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/random.h"
#include "moesaic/papers/clusters.h"

namespace moesaic {
namespace {

double in_range(CounterRng& rng, const std::vector<double>& range) {
  return range[0] + (range[1] - range[0]) * rng.uniform();
}

double sign(CounterRng& rng) {
  return rng.randint(2) == 0 ? -1.0 : 1.0;
}

/// Returns the position of each patch (Fisher-Yates shuffle).
std::vector<int64_t> patch_order(const ClusterMixtureConfig& config, CounterRng& rng) {
  std::vector<int64_t> places(static_cast<size_t>(config.num_patches));
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i);
  // The order is always drawn, so that later draws stay the same.
  std::vector<int64_t> shuffled = places;
  for (size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[rng.randint(i)]);
  return config.shuffle ? shuffled : places;
}

/// Writes one example to x [P, d]; returns {label, cluster}.
std::pair<int64_t, int64_t> make_example(const ClusterMixtureConfig& config,
                                         const ClusterSignals& signals, CounterRng rng, float* x) {
  const auto clusters = static_cast<uint64_t>(config.num_clusters);
  const auto k = static_cast<int64_t>(rng.randint(clusters));
  const auto other =
      (k + 1 + static_cast<int64_t>(rng.randint(clusters - 1))) % config.num_clusters;
  const double y = sign(rng);
  const std::vector<int64_t> place = patch_order(config, rng);
  const auto patch = [&](size_t i) { return x + place[i] * config.width; };
  const auto put = [&](double strength, const at::Tensor& directions_Kd, int64_t row, size_t i) {
    const float* const direction = directions_Kd.const_data_ptr<float>() + row * config.width;
    for (int64_t j = 0; j < config.width; ++j) {
      patch(i)[j] = static_cast<float>(config.scale * strength * direction[j]);
    }
  };
  put(y * in_range(rng, config.alpha), signals.v_Kd, k, 0);
  put(in_range(rng, config.beta), signals.c_Kd, k, 1);
  const double epsilon = sign(rng);
  put(epsilon * in_range(rng, config.gamma), signals.v_Kd, other, 2);
  const double deviation =
      config.scale * config.noise / std::sqrt(static_cast<double>(config.width));
  for (size_t i = 3; i < place.size(); ++i) {
    for (int64_t j = 0; j < config.width; ++j) {
      patch(i)[j] = static_cast<float>(deviation * rng.normal());
    }
  }
  return {y > 0 ? 1 : 0, k};
}

}  // namespace

ConfigProblem config_problem(const ClusterMixtureConfig& config) {
  for (const auto& [name, range] :
       {std::pair{"alpha", &config.alpha}, {"beta", &config.beta}, {"gamma", &config.gamma}}) {
    if (range->size() != 2 || (*range)[0] > (*range)[1]) {
      return {fmt::format("{} must be two numbers in order, the min and the max", name), {name}};
    }
  }
  if (2 * config.num_clusters > config.width) {
    return {
        fmt::format("{} clusters need a width of {} or more for orthogonal signals and centres, "
                    "found {}",
                    config.num_clusters, 2 * config.num_clusters, config.width),
        {"width", "num_clusters"}};
  }
  return {};
}

ClusterSignals cluster_signals(const ClusterMixtureConfig& config) {
  CounterRng rng(static_cast<uint64_t>(config.seed), stream_id("clusters.signals"), 0);
  at::Tensor normal = at::empty({config.width, 2 * config.num_clusters}, at::kDouble);
  auto* const numbers = normal.mutable_data_ptr<double>();
  for (int64_t i = 0; i < normal.numel(); ++i) numbers[i] = rng.normal();
  const at::Tensor vectors = std::get<0>(at::linalg_qr(normal)).t().to(at::kFloat).contiguous();
  return {vectors.slice(0, 0, config.num_clusters).clone(),
          vectors.slice(0, config.num_clusters).clone()};
}

DatasetInputs cluster_examples(const ClusterMixtureConfig& config, const ClusterSignals& signals,
                               const std::string& split, int64_t first, int64_t count) {
  DatasetInputs examples{at::empty({count, 1, config.num_patches, config.width}, at::kFloat),
                         at::empty({count}, at::kLong), at::empty({count}, at::kLong)};
  auto* const x = examples.values_NCHW.mutable_data_ptr<float>();
  auto* const labels = examples.labels_N.mutable_data_ptr<int64_t>();
  auto* const clusters = examples.groups_N.mutable_data_ptr<int64_t>();
  const uint64_t stream = stream_id("clusters." + split);
  at::parallel_for(0, count, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const CounterRng rng(static_cast<uint64_t>(config.seed), stream,
                           static_cast<uint64_t>(first + i));
      std::tie(labels[i], clusters[i]) =
          make_example(config, signals, rng, x + i * config.num_patches * config.width);
    }
  });
  return examples;
}

}  // namespace moesaic
