// SPDX-License-Identifier: Apache-2.0
// Data of a gated mixture, eq. 1 of "Learning in Gated Neural Networks".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/ops/link.h"

namespace moesaic {

inline constexpr const char *kAxes = "axes", *kOrthogonal = "orthogonal", *kRandom = "random";

struct GatedMixtureConfig {
  static constexpr const char* kKey = "mixture";  ///< Of a description.
  int64_t width = 10, experts = 2;
  std::string link = kLinkNames.front();
  double noise = 0.05;
  std::string regressors = kAxes, gates = kAxes;
  double gate_norm = 1.0;
  int64_t train = 1024000, test = 4096;
  int64_t seed = 1;
};
template <class Fields>
void describe(Fields& f, GatedMixtureConfig& c) {
  f("width", c.width, "d of an input", between(1, 65536));
  f("experts", c.experts, "k, each with a regressor a_i; all but the last have gates w_i",
    between(1, 1024));
  f("link", c.link, "g: an output is g(<a_i, x>) and noise",
    one_of({kLinkNames.begin(), kLinkNames.end()}));
  f("noise", c.noise, "sigma, the noise's standard deviation", between(0.0, 1e3));
  f("regressors", c.regressors,
    "unit vectors: e_1 to e_k, random orthogonal ones, or random ones, which are not orthogonal",
    one_of({kAxes, kOrthogonal, kRandom}));
  f("gates", c.gates,
    "vectors of norm gate_norm: along e_k+1 to e_2k-1, random ones orthogonal to each other and to "
    "the regressors, or random ones",
    one_of({kAxes, kOrthogonal, kRandom}));
  f("gate_norm", c.gate_norm, "norm of every gate", between(0.0, 1e3));
  f("train", c.train, "examples that count as an epoch of the endless training split",
    between(1, 1e12));
  f("test", c.test, "examples to test with", between(1, 1e8));
  f("seed", c.seed, "seed of directions and examples", at_least(0));
}
/// Refuses 2 k - 1 > d (assumption 3).
ConfigProblem config_problem(const GatedMixtureConfig& config);

/// The regressors a_i [k, d], of norm 1, and gates w_i [k - 1, d], float32; w_k = 0.
struct GatedTruth {
  at::Tensor a_kd, w_kd;
};
GatedTruth gated_truth(const GatedMixtureConfig& config);

struct GatedExamples {
  at::Tensor x_Nd;  ///< float32; the examples of a number lie side by side.
  at::Tensor y_N;   ///< float32
};

/// Generates examples `first` to `first + count - 1` of a split: x ~ N(0, I), z ~ softmax of
/// <w_i, x>, y = g(<a_z, x>) + noise. Example i depends on seed, split and i only.
GatedExamples gated_examples(const GatedMixtureConfig& config, const GatedTruth& truth,
                             const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
