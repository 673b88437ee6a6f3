// SPDX-License-Identifier: Apache-2.0
// Data of assumption 3.2 of "Mixture of Experts Provably Detect and Learn the Latent Cluster
// Structure in Gradient-Based Learning".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

struct LatentClustersConfig {
  static constexpr const char* kKey = "mixture";  ///< Of a description.
  int64_t width = 200, clusters = 2;
  double rho = 1.0, noise = 0.0;
  std::vector<std::vector<double>> local = {{0, 0, 0, 1, 0, 1}, {0, 0, 0, 1, 1}};
  std::vector<double> global = {0, 0, 0, 1};
  std::string directions = "orthogonal";
  int64_t train = 65536, test = 8192;
  int64_t seed = 1;
};
template <class Fields>
void describe(Fields& f, LatentClustersConfig& c) {
  f("width", c.width, "d of an input", between(1, 65536));
  f("clusters", c.clusters, "C; a cluster c has a mean rho v_c, its own task and a sign s_c",
    between(2, 1024));
  f("rho", c.rho, "norm of the means", between(1e-6, 1e3));
  f("noise", c.noise,
    "zeta, deviation of the training targets' noise; test targets have none, so that the error is "
    "that of the function",
    between(0.0, 1e3));
  f("local", c.local,
    "coefficients of He_i / sqrt(i!) of the clusters' own tasks f_c, i = 0, 1, ...; where there "
    "are fewer lists than clusters they repeat",
    not_empty);
  f("global", c.global,
    "those of the task g that all clusters share, with signs s_c whose sum is 0", not_empty);
  f("directions", c.directions,
    "w_1 to w_C, w_g and v_1 to v_C: random unit vectors after Gram-Schmidt, or as they are",
    one_of({"orthogonal", "random"}));
  f("train", c.train, "examples that count as an epoch of the endless training split",
    between(1, 1e12));
  f("test", c.test, "examples to test with", between(1, 1e8));
  f("seed", c.seed, "seed of directions and examples", at_least(0));
}
/// Refuses more directions than dimensions, and tasks whose information exponent is at most 2.
ConfigProblem config_problem(const LatentClustersConfig& config);

/// Returns the index of the first coefficient that is not 0 (definition 3.1 of the latent paper);
/// -1 where all are.
int64_t information_exponent(const std::vector<double>& coefficients);

/// Returns in what tasks and directions differ from assumptions 3.2 and 3.3, of which the theorems
/// make use: a line, "" where nothing does.
std::string departures(const LatentClustersConfig& config);

/// What the data are made of, float32 rows: w_c [C, d], w_g [1, d] and the means rho v_c [C, d].
struct LatentTruth {
  at::Tensor local_Cd, global_1d, mean_Cd;
  std::vector<double> sign;  ///< s_c: +1, -1 in turn; of an odd number the last three are +1, -1/2,
                             ///< -1/2.
};
LatentTruth latent_truth(const LatentClustersConfig& config);

struct LatentExamples {
  at::Tensor x_Nd;       ///< float32
  at::Tensor y_N;        ///< float32
  at::Tensor cluster_N;  ///< int64
};

/// Generates examples `first` to `first + count - 1` of a split: c is uniform, x ~ N(rho v_c, I),
/// y = f_c(<w_c, x>) + s_c g(<w_g, x>), with noise of N(0, zeta^2) in the training split. Example i
/// depends on seed, split and i only, with the same bits on every processor.
LatentExamples latent_examples(const LatentClustersConfig& config, const LatentTruth& truth,
                               const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
