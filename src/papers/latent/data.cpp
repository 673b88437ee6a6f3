// SPDX-License-Identifier: Apache-2.0
// Data of the latent paper, generated: an endless training split and a test split.
#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moesaic/base/log.h"
#include "moesaic/base/random.h"
#include "moesaic/ops/function_attributes.h"
#include "moesaic/ops/normals.h"
#include "parts.h"

namespace moesaic {
namespace {

/// Returns sum_k c[k] He_k(z) / sqrt(k!): the probabilists' Hermite polynomials, of norm 1 under
/// N(0, 1) (definition 3.1 of the latent paper).
double hermite_series(const std::vector<double>& c, double z) {
  double before = 0.0, now = 1.0, sum = 0.0;
  for (size_t k = 0; k < c.size(); ++k) {
    sum += c[k] * now;
    const auto degree = static_cast<double>(k);
    const double next = (z * now - std::sqrt(degree) * before) / std::sqrt(degree + 1.0);
    before = now;
    now = next;
  }
  return sum;
}

constexpr int kPart = 64;   // Examples that are made side by side.
constexpr int kLanes = 16;  // Partial sums of a product, in a fixed order.

struct Products {
  float local, global;
};

/// Adds the mean to x and returns its products with both directions.
MOESAIC_VECTOR_CLONES
Products move_and_project(float* x, const float* mean, const float* local, const float* global,
                          int64_t d) {
  float a[kLanes] = {}, b[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= d; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      x[j + l] += mean[j + l];
      a[l] += local[j + l] * x[j + l];
      b[l] += global[j + l] * x[j + l];
    }
  }
  for (int l = 0; j < d; ++j, ++l) {
    x[j] += mean[j];
    a[l] += local[j] * x[j];
    b[l] += global[j] * x[j];
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) {
      a[l] += a[l + half];
      b[l] += b[l + half];
    }
  }
  return {a[0], b[0]};
}

/// Gives rows the norm 1, and makes them orthogonal by Gram-Schmidt; plain loops have the same bits
/// everywhere.
void make_unit_rows(double* rows, int64_t count, int64_t d, bool orthogonal) {
  const auto product = [d](const double* a, const double* b) {
    double sum = 0.0;
    for (int64_t j = 0; j < d; ++j) sum += a[j] * b[j];
    return sum;
  };
  for (int64_t i = 0; i < count; ++i) {
    double* const row = rows + i * d;
    for (int64_t before = 0; orthogonal && before < i; ++before) {
      const double* const other = rows + before * d;
      const double along = product(row, other);
      for (int64_t j = 0; j < d; ++j) row[j] -= along * other[j];
    }
    const double norm = std::sqrt(product(row, row));
    for (int64_t j = 0; j < d; ++j) row[j] /= norm;
  }
}

/// Returns the index of the first coefficient that is not 0 (definition 3.1 of the latent paper);
/// -1 where all are.
int64_t information_exponent(const std::vector<double>& coefficients) {
  const auto first = std::ranges::find_if(coefficients, [](double c) { return c != 0.0; });
  return first == coefficients.end() ? -1 : first - coefficients.begin();
}

ConfigProblem exponent_problem(const std::vector<double>& coefficients, const std::string& key) {
  const int64_t exponent = information_exponent(coefficients);
  if (exponent > 0) return {};
  if (exponent < 0)
    return {fmt::format("{} needs a coefficient other than 0, found none", key), {key}};
  return {
      fmt::format(
          "{} has a constant term, which no neuron can learn; set its first coefficient to 0", key),
      {key}};
}

/// Returns s_c of each cluster.
std::vector<double> signs_of(const LatentClustersConfig& config) {
  if (!config.signs.empty()) return config.signs;
  std::vector<double> signs;
  for (int64_t c = 0; c < config.num_clusters; ++c) signs.push_back(c % 2 == 0 ? 1.0 : -1.0);
  if (config.num_clusters % 2 != 0) signs.back() = signs[signs.size() - 2] = -0.5;
  return signs;
}

}  // namespace

ConfigProblem config_problem(const LatentClustersConfig& config) {
  const int64_t directions = 2 * config.num_clusters + 1;
  if (directions > config.width) {
    return {fmt::format("{0} clusters have {1} directions (a mean and a task for each, and the "
                        "shared task), more than the width {2}; choose a width of at least {1}",
                        config.num_clusters, directions, config.width),
            {"width", "num_clusters"}};
  }
  if (static_cast<int64_t>(config.local.size()) > config.num_clusters) {
    return {fmt::format("local has {0} tasks for {1} clusters; give at most {1}",
                        config.local.size(), config.num_clusters),
            {"local", "num_clusters"}};
  }
  if (!config.signs.empty() && static_cast<int64_t>(config.signs.size()) != config.num_clusters) {
    return {fmt::format("signs has {0} numbers for {1} clusters; give {1}", config.signs.size(),
                        config.num_clusters),
            {"signs", "num_clusters"}};
  }
  for (size_t c = 0; c < config.local.size(); ++c) {
    ConfigProblem problem = exponent_problem(config.local[c], fmt::format("local.{}", c));
    if (!problem.empty()) return problem;
  }
  return exponent_problem(config.global, "global");
}

std::string assumption_violations(const LatentClustersConfig& config) {
  const int64_t k = information_exponent(config.global);
  const auto leading = [](const std::vector<double>& c) {
    return std::abs(c[static_cast<size_t>(information_exponent(c))]);
  };
  int64_t least = k;
  bool exponents = false, coefficients = false, norms = false;
  const auto look = [&](const std::vector<double>& c) {
    least = std::min(least, information_exponent(c));
    exponents = exponents || information_exponent(c) != k;
    coefficients = coefficients || std::abs(leading(c) - leading(config.global)) > 1e-9;
    double square = 0.0;
    for (const double coefficient : c) square += coefficient * coefficient;
    norms = norms || std::abs(square - 1.0) > 1e-9;
  };
  for (const std::vector<double>& c : config.local) look(c);
  look(config.global);
  std::vector<std::string> found;
  if (k % 2 != 0) found.push_back(fmt::format("an odd information exponent, {}", k));
  if (least < 3) found.push_back(fmt::format("an information exponent below 3, {}", least));
  if (exponents) found.emplace_back("tasks of different information exponents");
  if (coefficients) found.emplace_back("leading coefficients of different magnitude");
  if (norms) found.emplace_back("tasks whose mean square is not 1");
  const std::vector<double> signs = signs_of(config);
  if (std::abs(std::accumulate(signs.begin(), signs.end(), 0.0)) > 1e-9) {
    found.emplace_back("signs whose sum is not 0");
  }
  if (config.directions == "random") {
    found.emplace_back("means that are not orthogonal to the tasks' directions");
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

LatentTruth latent_truth(const LatentClustersConfig& config) {
  const int64_t clusters = config.num_clusters, all = 2 * clusters + 1;
  const SampleRng random(static_cast<uint64_t>(config.seed), stream_id("latent.directions"));
  const at::Tensor drawn_dK = at::empty({config.width, all}, at::kFloat);
  random.normals(0, all, config.width, drawn_dK.mutable_data_ptr<float>(), all);
  const at::Tensor rows = drawn_dK.t().to(at::kDouble).contiguous();
  make_unit_rows(rows.mutable_data_ptr<double>(), all, config.width,
                 config.directions == "orthogonal");
  const auto part = [&](int64_t begin, int64_t count, double norm) {
    return (rows.narrow(0, begin, count) * norm).to(at::kFloat).contiguous();
  };
  return {part(0, clusters, 1.0), part(clusters, 1, 1.0), part(clusters + 1, clusters, config.rho),
          signs_of(config)};
}

DatasetInputs latent_examples(const LatentClustersConfig& config, const LatentTruth& truth,
                              const std::string& split, int64_t first, int64_t count) {
  const int64_t d = config.width, clusters = config.num_clusters;
  DatasetInputs out{.values_NCHW = at::empty({count, 1, 1, d}, at::kFloat),
                    .groups_N = at::empty({count}, at::kLong),
                    .targets_NK = at::empty({count, 1}, at::kFloat)};
  auto* const x_Nd = out.values_NCHW.mutable_data_ptr<float>();
  auto* const y_N = out.targets_NK.mutable_data_ptr<float>();
  auto* const cluster_N = out.groups_N.mutable_data_ptr<int64_t>();
  const auto seed = static_cast<uint64_t>(config.seed);
  const SampleRng random(seed, stream_id("latent." + split));
  // Noise leaves the bits of all else as they are.
  const SampleRng noise_random(seed, stream_id("latent.noise." + split));
  const double deviation = split == "train" ? config.noise : 0.0;
  const auto row = [d](const at::Tensor& rows, int64_t c) {
    return rows.const_data_ptr<float>() + c * d;
  };
  const auto make_part = [&](int64_t begin, int64_t examples) {
    float choice[kPart], noise[kPart] = {};
    random.normal_rows(first + begin, examples, d, x_Nd + begin * d, d);
    random.uniforms(first + begin, examples, d / 4 + 1, choice);
    if (deviation > 0.0) noise_random.normals(first + begin, examples, 1, noise, kPart);
    for (int64_t i = 0; i < examples; ++i) {
      const int64_t c = std::min<int64_t>(
          clusters - 1, static_cast<int64_t>(choice[i] * static_cast<float>(clusters)));
      const Products at = move_and_project(x_Nd + (begin + i) * d, row(truth.mean_Cd, c),
                                           row(truth.local_Cd, c), row(truth.global_1d, 0), d);
      const auto task = static_cast<size_t>(c) % config.local.size();
      const double y =
          hermite_series(config.local[task], at.local) +
          truth.sign[static_cast<size_t>(c)] * hermite_series(config.global, at.global) +
          deviation * noise[i];
      y_N[begin + i] = static_cast<float>(y);
      cluster_N[begin + i] = c;
    }
  };
  at::parallel_for(0, (count + kPart - 1) / kPart, 4, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      make_part(part * kPart, std::min<int64_t>(kPart, count - part * kPart));
    }
  });
  return out;
}

void warn_of(const LatentClustersConfig& config, const DatasetInfo& info) {
  const std::string departed = assumption_violations(config);
  if (info.split != "train" || departed.empty()) return;
  log_warning("dataset '{}': the theorems do not cover it (assumptions 3.2 and 3.3): {}", info.name,
              departed);
}

MakeInputs latent_inputs(const LatentClustersConfig& config, DatasetInfo& info) {
  info.targets = {"y"};
  info.groups = numbered("cluster ", config.num_clusters);
  const LatentTruth truth = latent_truth(config);
  info.directions = {
      {"local", truth.local_Cd}, {"global", truth.global_1d}, {"mean", truth.mean_Cd}};
  return [config, truth, split = info.split](int64_t first, int64_t count) {
    return latent_examples(config, truth, split, first, count);
  };
}

}  // namespace moesaic
