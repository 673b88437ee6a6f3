// SPDX-License-Identifier: Apache-2.0
// Data with cluster structure, definition 3.1 of "Towards Understanding Mixture of Experts".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

inline constexpr double kMaxClusters = 1024;
/// Bounds within which cubes of products stay in the range of float32.
inline constexpr double kMinNumber = 1e-6, kMaxNumber = 1e6;

struct ClusterMixtureConfig {
  static constexpr const char* kKey = "clusters";  ///< Of a description.
  int64_t clusters = 4, patches = 4, width = 50;
  std::vector<double> alpha = {0.5, 2.0}, beta = {1.0, 2.0}, gamma = {0.5, 3.0};
  double noise = 1.0;
  double scale = 10.0;
  bool shuffle = true;
  int64_t train = 16000, test = 16000;
  bool endless = false;
  int64_t seed = 1;
};
template <class Fields>
void describe(Fields& f, ClusterMixtureConfig& c) {
  f("clusters", c.clusters, "K, each with a signal v_k and a centre c_k", between(2, kMaxClusters));
  f("patches", c.patches, "P of an input: a signal, a centre, another cluster's signal, noise",
    between(3, 4096));
  f("width", c.width, "d of a patch; the 2 K signals and centres are orthogonal in it",
    between(4, 65536));
  f("alpha", c.alpha, "range of the signal's strength", between(kMinNumber, kMaxNumber));
  f("beta", c.beta, "range of the centre's strength", between(kMinNumber, kMaxNumber));
  f("gamma", c.gamma, "range of the other cluster's signal's strength",
    between(kMinNumber, kMaxNumber));
  f("noise", c.noise, "sigma_p; the variance of a number of a patch of noise is sigma_p^2 / d",
    between(0.0, kMaxNumber));
  f("scale", c.scale, "what every number is multiplied by in the end",
    between(kMinNumber, kMaxNumber));
  f("shuffle", c.shuffle,
    "an example's patches stand in random order; else as they are listed at 'patches'");
  f("train", c.train, "examples to train on; of an endless stream those that count as an epoch",
    between(1, 1e8));
  f("test", c.test, "examples to test with", between(1, 1e8));
  f("endless", c.endless,
    "examples to train on never come again: epoch e has those from e * train on; the test split "
    "stays as it is");
  f("seed", c.seed, "seed of signals, centres and examples", at_least(0));
}
/// Checks that ranges are two numbers in order and that 2 K vectors fit into d dimensions.
ConfigProblem config_problem(const ClusterMixtureConfig& config);

/// The signals v_k and centres c_k of the clusters, all orthonormal, float32.
struct ClusterSignals {
  at::Tensor v_Kd, c_Kd;
};
ClusterSignals cluster_signals(const ClusterMixtureConfig& config);

struct ClusterExamples {
  at::Tensor x_NPd;      ///< Patches, float32.
  at::Tensor labels_N;   ///< Labels (y + 1) / 2, int64.
  at::Tensor cluster_N;  ///< Clusters k, int64.
};

/// Generates examples of definition 3.1: k, k' != k, y and eps = +-1, alpha, beta, gamma uniform in
/// their ranges; the patches y alpha v_k, beta c_k, eps gamma v_k' and P - 3 of
/// N(0, sigma_p^2 / d I) in random order, times `scale`; without `shuffle` in the order of this
/// list. `split` is "train" or "test"; both share signals and centres. Example i depends on seed,
/// split and i only. Returns `count` of them from index `first` on.
ClusterExamples cluster_examples(const ClusterMixtureConfig& config, const ClusterSignals& signals,
                                 const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
