// SPDX-License-Identifier: Apache-2.0
// Data of a gated mixture, generated: an endless training split and a test split.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>

#include "losses.h"
#include "moesaic/base/random.h"
#include "moesaic/ops/function_attributes.h"
#include "moesaic/ops/normals.h"
#include "moesaic/ops/softmax_exp.h"
#include "parts.h"

namespace moesaic {
namespace {

constexpr int kPart = 256;  // Examples that are made side by side.
constexpr int kLanes = 64;  // Of them in registers: some vectors of any processor.

at::Tensor normal_rows(const GatedMixtureConfig& config, const char* purpose, int64_t rows) {
  const SampleRng random(static_cast<uint64_t>(config.seed), stream_id(purpose));
  at::Tensor out = at::empty({config.width, rows}, at::kFloat);
  random.normals(0, rows, config.width, out.mutable_data_ptr<float>(), rows);
  return out.t().to(at::kDouble);
}

/// Numbers of a part's examples, which lie side by side.
struct Part {
  std::vector<float> normals, choice, products, logits;

  Part(int64_t d, int64_t k)
      : normals(static_cast<size_t>((d + 1) * kPart)),
        choice(kPart),
        products(static_cast<size_t>(k * kPart)),
        logits(static_cast<size_t>(k * kPart)) {}
};

/// Computes to[i] = <weights[i], x> for all examples of a part.
MOESAIC_IN_CLONE void project_part(const float* x, const float* weights, int64_t rows, int64_t d,
                                   float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int begin = 0; begin < kPart; begin += kLanes) {
      float sums[kLanes] = {};
      for (int64_t j = 0; j < d; ++j) {
        const float weight = weights[i * d + j];
        const float* const values = x + j * kPart + begin;
        for (int l = 0; l < kLanes; ++l) sums[l] += weight * values[l];
      }
      std::copy_n(sums, kLanes, to + i * kPart + begin);
    }
  }
}

/// Writes g's argument of the expert that the gates give to each example's uniform number.
MOESAIC_VECTOR_CLONES
void choose_experts(const float* a, const float* w, const float* b, int64_t d, int64_t k,
                    Part& part, float* z) {
  project_part(part.normals.data(), a, k, d, part.products.data());
  project_part(part.normals.data(), w, k - 1, d, part.logits.data());
  float* const logits = part.logits.data();
  float max[kPart], sum[kPart];
  for (int s = 0; s < kPart; ++s) {
    logits[(k - 1) * kPart + s] = max[s] = 0.0f;
    sum[s] = 0.0f;
    z[s] = part.products[static_cast<size_t>((k - 1) * kPart + s)];
  }
  for (int64_t i = 0; i + 1 < k; ++i) {
    for (int s = 0; s < kPart; ++s) {
      logits[i * kPart + s] += b[i];
      max[s] = logits[i * kPart + s] > max[s] ? logits[i * kPart + s] : max[s];
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    for (int s = 0; s < kPart; ++s) {
      sum[s] += ops::softmax_exp(logits[i * kPart + s] - max[s]);
      logits[i * kPart + s] = sum[s];  // Those up to the expert's own.
    }
  }
  for (int64_t i = k - 2; i >= 0; --i) {
    const float* const own = part.products.data() + i * kPart;
    for (int s = 0; s < kPart; ++s) {
      z[s] = part.choice[static_cast<size_t>(s)] * sum[s] < logits[i * kPart + s] ? own[s] : z[s];
    }
  }
}

}  // namespace

ConfigProblem config_problem(const GatedMixtureConfig& config) {
  const int64_t k = config.num_experts, d = config.width;
  const int64_t biases = std::ssize(config.gate_biases);
  if (biases != 0 && biases != k - 1) {
    return {
        fmt::format("gate_biases has {2} numbers, but {0} experts have {1} gates; give {1} numbers",
                    k, k - 1, biases),
        {"gate_biases", "num_experts"}};
  }
  if (config.gates != kRandom && 2 * k - 1 > d) {
    return {fmt::format("{1} orthogonal regressors and gates of {0} experts do not fit into {2} "
                        "dimensions; choose at most {3} experts, or gates random",
                        k, 2 * k - 1, d, (d + 1) / 2),
            {"num_experts", "width", "gates"}};
  }
  if (config.regressors == kRandom || k <= d) return {};
  return {fmt::format("{0} orthogonal regressors do not fit into {1} dimensions; choose at most "
                      "{1} experts, or regressors random",
                      k, d),
          {"num_experts", "width", "regressors"}};
}

GatedTruth gated_truth(const GatedMixtureConfig& config) {
  const int64_t k = config.num_experts, all = 2 * k - 1;
  const at::Tensor axes = at::eye(all, config.width, at::kDouble);
  // Orthonormal rows that are orthogonal to those of `first` and among each other.
  const auto orthogonal_to = [&](const at::Tensor& first, int64_t count) {
    const at::Tensor rows = at::cat({first, normal_rows(config, "gated.orthogonal", count)});
    return std::get<0>(at::linalg_qr(rows.t())).t().narrow(0, first.size(0), count);
  };
  const auto directions = [&](const std::string& kind, const char* purpose, int64_t begin,
                              int64_t count, const at::Tensor& earlier) {
    if (kind == kAxes) return axes.narrow(0, begin, count);
    if (kind == kOrthogonal) return orthogonal_to(earlier, count);
    const at::Tensor rows = normal_rows(config, purpose, count);
    return rows / rows.norm(2, {1}, true);
  };
  const at::Tensor a =
      directions(config.regressors, "gated.regressors", 0, k, axes.narrow(0, 0, 0));
  const at::Tensor w = directions(config.gates, "gated.gates", k, k - 1, a) * config.gate_norm;
  const at::Tensor b = config.gate_biases.empty() ? at::zeros({k - 1}, at::kDouble)
                                                  : at::tensor(config.gate_biases, at::kDouble);
  return {a.to(at::kFloat).contiguous(), w.to(at::kFloat).contiguous(), b.to(at::kFloat)};
}

DatasetInputs gated_examples(const GatedMixtureConfig& config, const GatedTruth& truth,
                             const std::string& split, int64_t first, int64_t count) {
  const int64_t d = config.width, k = config.num_experts;
  const at::Tensor x_dN = at::empty({d, count}, at::kFloat);
  const at::Tensor y_N1 = at::empty({count, 1}, at::kFloat);
  auto *const x = x_dN.mutable_data_ptr<float>(), *const y = y_N1.mutable_data_ptr<float>();
  const at::Tensor a = truth.a_kd.contiguous(), w = truth.w_kd.contiguous();
  const Link link = link_from_name(config.link);
  const auto deviation = static_cast<float>(config.noise);
  const SampleRng random(static_cast<uint64_t>(config.seed), stream_id("gated." + split));
  const auto make_part = [&](int64_t begin, int64_t examples) {
    Part part(d, k);
    random.normals(first + begin, examples, d + 1, part.normals.data(), kPart);
    random.uniforms(first + begin, examples, d / 4 + 1, part.choice.data());
    float z[kPart];
    choose_experts(a.const_data_ptr<float>(), w.const_data_ptr<float>(),
                   truth.b_k.const_data_ptr<float>(), d, k, part, z);
    const float* const noise = part.normals.data() + d * kPart;
    for (int64_t i = 0; i < examples; ++i) {
      y[begin + i] = link_at(link, z[i]) + deviation * noise[i];
    }
    for (int64_t j = 0; j < d; ++j) {
      std::copy_n(part.normals.data() + j * kPart, examples, x + j * count + begin);
    }
  };
  at::parallel_for(0, (count + kPart - 1) / kPart, 16, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      make_part(part * kPart, std::min<int64_t>(kPart, count - part * kPart));
    }
  });
  return {.values_NCHW = x_dN.t().unsqueeze(1).unsqueeze(1), .targets_NK = y_N1};
}

MakeInputs gated_inputs(const GatedMixtureConfig& config, DatasetInfo& info) {
  info.targets = {"y"};
  const GatedTruth truth = gated_truth(config);
  info.directions = {{"regressor", truth.a_kd}};
  const bool has_biases = !config.gate_biases.empty();
  if (truth.w_kd.size(0) > 0) {
    info.directions["gate"] =
        has_biases ? at::cat({truth.w_kd, truth.b_k.unsqueeze(1)}, 1) : truth.w_kd;
  }
  return [config, truth, split = info.split](int64_t first, int64_t count) {
    return gated_examples(config, truth, split, first, count);
  };
}

}  // namespace moesaic
