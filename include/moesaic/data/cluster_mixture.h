// SPDX-License-Identifier: Apache-2.0
// Data with cluster structure: definition 3.1 of "Towards Understanding Mixture of Experts".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

inline constexpr double kMostClusters = 1024;

struct ClusterMixtureConfig {
  int64_t clusters = 4, patches = 4, width = 50;
  std::vector<double> alpha = {0.5, 2.0}, beta = {1.0, 2.0}, gamma = {0.5, 3.0};
  double noise = 1.0;
  double scale = 10.0;
  int64_t train = 16000, test = 16000;
  int64_t seed = 1;
};
template <class Fields>
void describe(Fields& f, ClusterMixtureConfig& c) {
  f("clusters", c.clusters, "K, each with a signal v_k and a centre c_k",
    between(2, kMostClusters));
  f("patches", c.patches, "P of an input: a signal, a centre, another cluster's signal, noise",
    between(3, 4096));
  f("width", c.width, "d of a patch; the 2 K signals and centres are orthogonal in it",
    between(4, 65536));
  f("alpha", c.alpha, "range of the signal's strength", above(0.0));
  f("beta", c.beta, "range of the centre's strength", above(0.0));
  f("gamma", c.gamma, "range of the other cluster's signal's strength", above(0.0));
  f("noise", c.noise, "sigma_p; the variance of a number of a patch of noise is sigma_p^2 / d",
    at_least(0.0));
  f("scale", c.scale, "what every number is multiplied by in the end", above(0.0));
  f("train", c.train, "examples to train on", between(1, 1e8));
  f("test", c.test, "examples to test with", between(1, 1e8));
  f("seed", c.seed, "of signals, centres and examples", at_least(0));
}
/// Ranges are two numbers in order; 2 K vectors fit into d dimensions.
ConfigProblem config_problem(const ClusterMixtureConfig& config);

/// Signals and centres, all orthonormal: float32.
struct ClusterSignals {
  at::Tensor v_Kd, c_Kd;
};
ClusterSignals cluster_signals(const ClusterMixtureConfig& config);

struct ClusterExamples {
  at::Tensor x_NPd;      ///< float32
  at::Tensor labels_N;   ///< int64: (y + 1) / 2
  at::Tensor cluster_N;  ///< int64: k
};

/// Definition 3.1: k, k' != k, y and eps = +-1, alpha, beta, gamma uniform in their ranges; the
/// patches y alpha v_k, beta c_k, eps gamma v_k' and P - 3 of N(0, sigma_p^2 / d I) in random
/// order, times `scale`. `split` is "train" or "test"; both share signals and centres. Example i
/// depends on seed, split and i alone.
ClusterExamples cluster_examples(const ClusterMixtureConfig& config, const std::string& split);

}  // namespace moesaic
