// SPDX-License-Identifier: Apache-2.0
#include "papers/latent/spherical_sgd.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/support.h"
#include "papers/latent/spherical_kernel.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr double kStep = 0.01;

Tensor unit_rows(int64_t rows, int64_t width, uint64_t seed) {
  const Tensor w = randn({rows, width}, seed);
  return (w / w.norm(2, {1}, true)).to(torch::kFloat);
}

/// Neurons, the later the longer their steps, with `coefficients` Hermite coefficients or ReLU.
SphericalNeurons some_neurons(int64_t count, int64_t width, int64_t coefficients) {
  const Tensor a_N =
      randn({count}, 2, torch::kFloat).sign() * at::linspace(0.4, 1.8, count).square();
  SphericalNeurons neurons{
      unit_rows(count, width, 1), a_N, randn({count}, 3, torch::kFloat).clamp(-1, 1), {}};
  if (coefficients > 0) neurons.hermite_NK = randn({count, coefficients}, 4, torch::kFloat);
  return neurons;
}

/// Samples that expert m gets with probability share[m], with gates of their own.
RoutedSamples some_samples(int64_t count, int64_t width, const std::vector<double>& share) {
  RoutedSamples samples;
  samples.x_Sd = randn({count, width}, 5, torch::kFloat);
  samples.y_S = randn({count}, 6, torch::kFloat);
  const auto experts = static_cast<int64_t>(share.size());
  const Tensor draws = at::special_ndtr(randn({experts, count}, 7));
  std::vector<int64_t> offset = {0}, sample;
  for (int64_t m = 0; m < experts; ++m) {
    for (int64_t i = 0; i < count; ++i) {
      if (draws[m][i].item<double>() < share[static_cast<size_t>(m)]) sample.push_back(i);
    }
    offset.push_back(static_cast<int64_t>(sample.size()));
  }
  samples.offset = torch::tensor(offset, torch::kLong);
  samples.sample = torch::tensor(sample, torch::kLong);
  samples.gate = randn({samples.sample.size(0)}, 8, torch::kFloat).abs();
  return samples;
}

/// sigma' from raw Hermite polynomials He_k and factorials.
double slope_of(const Tensor& coefficients, double z) {
  double slope = 0.0, before = 0.0, now = 1.0, factorial = 1.0;
  for (int64_t k = 1; k < coefficients.size(0); ++k) {
    const auto order = static_cast<double>(k);
    factorial *= order;
    slope += coefficients[k].item<double>() * order * now / std::sqrt(factorial);
    const double next = z * now - (order - 1.0) * before;
    before = now;
    now = next;
  }
  return slope;
}

/// Single steps, each with its own projection and norm, in float64.
Tensor plain_steps(const SphericalNeurons& neurons, const RoutedSamples& samples, double step) {
  const int64_t experts = samples.offset.size(0) - 1, width = neurons.w_Nd.size(1);
  const int64_t hidden = neurons.w_Nd.size(0) / experts;
  const Tensor w_Nd = neurons.w_Nd.to(torch::kDouble), x_Sd = samples.x_Sd.to(torch::kDouble);
  for (int64_t n = 0; n < experts * hidden; ++n) {
    auto* const w = w_Nd.mutable_data_ptr<double>() + n * width;
    const double a = neurons.a_N[n].item<double>(), b = neurons.b_N[n].item<double>();
    const auto begin = samples.offset[n / hidden].item<int64_t>();
    for (int64_t r = begin; r < samples.offset[n / hidden + 1].item<int64_t>(); ++r) {
      const auto i = samples.sample[r].item<int64_t>();
      const auto* const x = x_Sd.const_data_ptr<double>() + i * width;
      double p = 0.0, square = 0.0;
      for (int64_t c = 0; c < width; ++c) p += w[c] * x[c];
      const bool relu = !neurons.hermite_NK.defined();
      const double slope =
          relu ? (p + b > 0.0 ? 1.0 : 0.0) : slope_of(neurons.hermite_NK[n], p + b);
      const double k =
          step * samples.gate[r].item<double>() * samples.y_S[i].item<double>() * a * slope;
      for (int64_t c = 0; c < width; ++c) {
        w[c] += k * (x[c] - p * w[c]);
        square += w[c] * w[c];
      }
      for (int64_t c = 0; c < width; ++c) w[c] /= std::sqrt(square);
    }
  }
  return w_Nd;
}

/// Every kernel of this processor against plain steps. A sample so near to a ReLU's edge that
/// float32 decides otherwise would differ by its whole step.
void expect_plain_steps(int64_t experts, int64_t hidden, int64_t width, int64_t coefficients,
                        double step = kStep) {
  SCOPED_TRACE(c10::str(experts, " experts of ", hidden, ", d ", width, ", K ", coefficients));
  std::vector<double> share(static_cast<size_t>(experts), 0.6);
  if (experts > 1) share[1] = 0.0;
  const RoutedSamples samples = some_samples(45, width, share);
  const SphericalNeurons before = some_neurons(experts * hidden, width, coefficients);
  const Tensor wanted = plain_steps(before, samples, step);
  for (const auto& kernel : ops::spherical_kernels()) {
    SCOPED_TRACE(kernel.name);
    SphericalNeurons neurons = before;
    neurons.w_Nd = before.w_Nd.clone();
    ops::spherical_sgd_by(kernel, neurons, samples, step);
    expect_close(neurons.w_Nd, wanted, 3e-6);
    if (width > 1) {
      EXPECT_GT((neurons.w_Nd - before.w_Nd).abs().max().item<double>(), 1e-3);
    }
    if (experts > 1) {
      EXPECT_TRUE(
          neurons.w_Nd.narrow(0, hidden, hidden).equal(before.w_Nd.narrow(0, hidden, hidden)));
    }
  }
}

TEST(SphericalSgd, ReluEqualsSingleSteps) {
  for (const int64_t width : {1, 2, 7, 16, 37, 64}) expect_plain_steps(3, 5, width, 0);
  for (const int64_t hidden : {1, 8, 33, 70}) expect_plain_steps(1, hidden, 13, 0);
  expect_plain_steps(2, 20, 200, 0);
}

TEST(SphericalSgd, HermiteEqualsSingleSteps) {
  for (const int64_t coefficients : {2, 4, 6}) expect_plain_steps(2, 9, 11, coefficients);
  expect_plain_steps(1, 35, 40, 5);
}

TEST(SphericalSgd, StepsAsLongAsTheSphereIsWideEqualSingleSteps) {
  for (const double step : {0.05, 0.2, 3.0}) expect_plain_steps(1, 70, 12, 0, step);
}

TEST(SphericalSgd, ASampleAlongAWeightLeavesIt) {
  constexpr int64_t kCount = 40;
  SphericalNeurons neurons = some_neurons(kCount, 9, 0);
  const Tensor before = neurons.w_Nd.clone();
  const RoutedSamples samples{before * 30, randn({kCount}, 6, torch::kFloat),
                              torch::arange(kCount + 1), torch::arange(kCount),
                              torch::ones({kCount})};
  spherical_sgd(neurons, samples, 300.0);
  expect_close(neurons.w_Nd, before, 2e-2);  // Rounding of p, up to 70 000 times.
}

TEST(SphericalSgd, LongBlocksEqualShortOnes) {
  const RoutedSamples all = some_samples(3000, 21, {0.5, 0.9});
  SphericalNeurons once = some_neurons(80, 21, 0), parts = some_neurons(80, 21, 0);
  spherical_sgd(once, all, kStep);
  const int64_t split = 1203;  // Routed samples of expert 0 in the first call.
  const int64_t ends[] = {split, all.offset[1].item<int64_t>()};
  const auto part = [&](int64_t begin, int64_t end, int64_t begin1, int64_t end1) {
    RoutedSamples some = all;
    some.offset =
        torch::tensor({int64_t{0}, end - begin, end - begin + end1 - begin1}, torch::kLong);
    some.sample = at::cat({all.sample.slice(0, begin, end), all.sample.slice(0, begin1, end1)});
    some.gate = at::cat({all.gate.slice(0, begin, end), all.gate.slice(0, begin1, end1)});
    spherical_sgd(parts, some, kStep);
  };
  part(0, ends[0], ends[1], ends[1] + 5);
  part(ends[0], ends[1], ends[1] + 5, all.sample.size(0));
  expect_close(once.w_Nd, parts.w_Nd, 1e-5);
}

TEST(SphericalSgd, NormsOfLongBlocksStayThoseOfSingleSteps) {
  // Only at the end of a call is a row divided by its norm: until then it is 1 by its formula.
  const RoutedSamples samples = some_samples(3000, 21, {0.5, 0.9});
  SphericalNeurons neurons = some_neurons(6, 21, 0);
  const Tensor wanted = plain_steps(neurons, samples, kStep);
  spherical_sgd(neurons, samples, kStep);
  expect_close(neurons.w_Nd, wanted, 1e-4);
}

TEST(SphericalSgd, HasTheSameBitsOnAnyNumberOfThreads) {
  const RoutedSamples samples = some_samples(300, 30, {0.5, 0.1, 0.9});
  const int before = at::get_num_threads();
  for (const int64_t coefficients : {0, 5}) {
    std::vector<Tensor> found;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      SphericalNeurons neurons = some_neurons(3 * 100, 30, coefficients);
      spherical_sgd(neurons, samples, kStep);
      found.push_back(neurons.w_Nd);
    }
    EXPECT_TRUE(found[0].equal(found[1]));
    EXPECT_TRUE(found[0].equal(found[2]));
  }
  at::set_num_threads(before);
}

TEST(SphericalSgd, TakesIndicesOf32BitsAndNoSamples) {
  RoutedSamples samples = some_samples(50, 6, {0.5, 0.5});
  SphericalNeurons wide = some_neurons(8, 6, 0), narrow = some_neurons(8, 6, 0);
  spherical_sgd(wide, samples, kStep);
  samples.sample = samples.sample.to(torch::kInt);
  spherical_sgd(narrow, samples, kStep);
  EXPECT_TRUE(wide.w_Nd.equal(narrow.w_Nd));
  RoutedSamples none = some_samples(0, 6, {0.5, 0.5});
  spherical_sgd(narrow, none, kStep);
  EXPECT_TRUE(wide.w_Nd.equal(narrow.w_Nd));
}

TEST(SphericalSgd, WhatIsNotFiniteStaysWithItsExpert) {
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    RoutedSamples samples = some_samples(40, 8, {1.0, 1.0});
    samples.offset = torch::tensor({0, 20, 40}, torch::kLong);
    samples.sample = torch::arange(40, torch::kLong);
    samples.gate = torch::ones({40});
    samples.x_Sd[11][3] = value;
    SphericalNeurons neurons = some_neurons(14, 8, 0);
    spherical_sgd(neurons, samples, kStep);
    EXPECT_TRUE(neurons.w_Nd.narrow(0, 0, 7).isnan().all().item<bool>());
    EXPECT_TRUE(neurons.w_Nd.narrow(0, 7, 7).isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace moesaic
