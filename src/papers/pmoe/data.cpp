// SPDX-License-Identifier: Apache-2.0
// Data of the pMoE paper's theory, generated: an endless training split and a test split.
#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "moesaic/base/random.h"
#include "parts.h"

namespace moesaic {
namespace {

/// In the plane of o1 and o2, whose axes are along o1 + o2 and o1 - o2, an o has these coordinates.
struct Plane {
  double along, across;

  explicit Plane(double delta_d)
      : along(std::sqrt((1.0 + delta_d) / 2.0)), across(std::sqrt((1.0 - delta_d) / 2.0)) {}
};

std::vector<double> unit_vector(CounterRng& rng, int64_t first, int64_t width) {
  std::vector<double> v(static_cast<size_t>(width), 0.0);
  double norm = 0.0;
  for (int64_t i = first; i < width; ++i) {
    const double drawn = rng.normal();
    v[static_cast<size_t>(i)] = drawn;
    norm += drawn * drawn;
  }
  for (double& number : v) number /= std::sqrt(norm);
  return v;
}

/// Writes a pattern of the set of this centre: a unit vector within its radius.
void draw_pattern(CounterRng& rng, const float* centre, const PatternSets& sets, int64_t width,
                  float* to) {
  // A step within the other dimensions leaves the products with o1 and o2 within their bounds.
  const std::vector<double> direction = unit_vector(rng, 2, width);
  const double length = sets.radius * rng.uniform();
  double norm = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    const double number = centre[i] + length * direction[static_cast<size_t>(i)];
    norm += i < 2 ? 0.0 : number * number;
    to[i] = static_cast<float>(number);
  }
  const double rest = 1.0 - static_cast<double>(to[0]) * to[0] - static_cast<double>(to[1]) * to[1];
  for (int64_t i = 2; i < width; ++i) to[i] *= static_cast<float>(std::sqrt(rest / norm));
}

/// Draws an example of n patches; returns the place of the one that tells the class.
int64_t draw_example(const PatchPatternsConfig& config, const PatternSets& sets, CounterRng rng,
                     int64_t label, float* x_nd) {
  const int64_t n = config.num_patches, width = config.width;
  std::vector<int64_t> place(static_cast<size_t>(n));
  std::iota(place.begin(), place.end(), 0);
  for (size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[rng.randint(i)]);
  const auto row = [&](int64_t i) { return x_nd + place[static_cast<size_t>(i)] * width; };
  std::copy_n(sets.deciding_2d.const_data_ptr<float>() + label * width, width, row(0));
  const auto side = static_cast<int64_t>(rng.randint(2));
  const auto* const centres = sets.centre_pd.const_data_ptr<float>();
  const auto of_side = static_cast<uint64_t>(std::max<int64_t>(sets.num_close / 2, 1));
  const auto far = static_cast<uint64_t>(config.num_sets - sets.num_close);
  for (int64_t i = 1; i < n; ++i) {
    const int64_t set = i < config.threshold
                            ? 2 * static_cast<int64_t>(rng.randint(of_side)) + side
                            : sets.num_close + static_cast<int64_t>(rng.randint(far));
    draw_pattern(rng, centres + set * width, sets, width, row(i));
  }
  return place[0];
}

}  // namespace

ConfigProblem config_problem(const PatchPatternsConfig& config) {
  if (config.threshold > config.num_patches) {
    return {fmt::format("threshold is {0}, but an example has {1} patches; choose at most {1}",
                        config.threshold, config.num_patches),
            {"threshold", "num_patches"}};
  }
  if (config.threshold == 1) return {};
  if (2.0 * config.delta_r <= (1.0 - config.delta_d) / 2.0) {
    return {fmt::format("no pattern with delta_r {} is closer to one class-deciding pattern than "
                        "to the other by (1 - delta_d) / 2; choose a delta_r above {}",
                        config.delta_r, (1.0 - config.delta_d) / 4.0),
            {"delta_r", "delta_d"}};
  }
  const double across = config.delta_r / Plane(config.delta_d).across;
  if (across <= 1.0) return {};
  return {fmt::format("no unit vector has inner products {0} and -{0} with the two class-deciding "
                      "patterns; choose a delta_r of at most {1}",
                      config.delta_r, Plane(config.delta_d).across),
          {"delta_r", "delta_d"}};
}

PatternSets pattern_sets(const PatchPatternsConfig& config) {
  // The first two coordinates are the plane of o1 and o2: another basis changes no inner product.
  const Plane plane(config.delta_d);
  const int64_t width = config.width, sets = config.num_sets;
  PatternSets made;
  made.deciding_2d = at::zeros({2, width}, at::kFloat);
  auto* const o = made.deciding_2d.mutable_data_ptr<float>();
  o[0] = o[width] = static_cast<float>(plane.along);
  o[1] = static_cast<float>(plane.across);
  o[width + 1] = -o[1];
  made.num_close = config.threshold > 1 ? std::max<int64_t>(2, sets / 2 / 2 * 2) : 0;
  made.radius = 0.5 * std::sqrt((1.0 - config.delta_r * config.delta_r) /
                                static_cast<double>(width * sets * sets));
  made.centre_pd = at::empty({sets, width}, at::kFloat);
  for (int64_t s = 0; s < sets; ++s) {
    CounterRng rng(static_cast<uint64_t>(config.seed), stream_id("patch_patterns.sets"),
                   static_cast<uint64_t>(s));
    std::vector<double> q = unit_vector(rng, 2, width);
    const double sign = s % 2 == 0 ? 1.0 : -1.0;
    const double across = s < made.num_close ? sign * config.delta_r / plane.across : 0.0;
    for (double& number : q) number *= std::sqrt(1.0 - across * across);
    q[1] = across;
    for (int64_t i = 0; i < width; ++i) {
      made.centre_pd.mutable_data_ptr<float>()[s * width + i] =
          static_cast<float>(q[static_cast<size_t>(i)]);
    }
  }
  return made;
}

DatasetInputs patch_patterns(const PatchPatternsConfig& config, const PatternSets& sets,
                             const std::string& split, int64_t first, int64_t count) {
  DatasetInputs made{at::empty({count, 1, config.num_patches, config.width}, at::kFloat),
                     at::empty({count}, at::kLong), at::empty({count}, at::kLong)};
  const uint64_t stream = stream_id("patch_patterns." + split);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = (first + i) % 2;
    made.labels_N.mutable_data_ptr<int64_t>()[i] = label;
    made.groups_N.mutable_data_ptr<int64_t>()[i] = draw_example(
        config, sets,
        CounterRng(static_cast<uint64_t>(config.seed), stream, static_cast<uint64_t>(first + i)),
        label, made.values_NCHW.mutable_data_ptr<float>() + i * config.num_patches * config.width);
  }
  return made;
}

MakeInputs patch_inputs(const PatchPatternsConfig& config, DatasetInfo& info) {
  info.classes = {"with o1", "with o2"};
  info.groups = numbered("place ", config.num_patches);
  const PatternSets sets = pattern_sets(config);
  // Inputs have one channel, whose rows are the patches.
  info.directions = {{"deciding", sets.deciding_2d}, {"other", sets.centre_pd}};
  return [config, sets, split = info.split](int64_t first, int64_t count) {
    return patch_patterns(config, sets, split, first, count);
  };
}

}  // namespace moesaic
