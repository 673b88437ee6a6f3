// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/gated_mixture.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "moesaic/base/random.h"
#include "moesaic/ops/normals.h"

namespace moesaic {
namespace {

constexpr int64_t kPart = 256;  // Examples that are made side by side.

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, true);
}

at::Tensor normal_rows(const GatedMixtureConfig& config, const char* purpose, int64_t rows) {
  const SampleRandom random(static_cast<uint64_t>(config.seed), stream_id(purpose));
  at::Tensor out = at::empty({config.width, rows}, at::kFloat);
  random.normals(0, rows, config.width, out.mutable_data_ptr<float>(), rows);
  return out.t().to(at::kDouble);
}

/// Makes a few examples at a time; numbers of an example lie a part apart.
class ExampleMaker {
 public:
  ExampleMaker(const GatedMixtureConfig& config, const GatedTruth& truth, const std::string& split)
      : d_(config.width),
        k_(config.experts),
        noise_(static_cast<float>(config.noise)),
        link_(link_from_name(config.link)),
        a_(truth.a_kd.contiguous()),
        w_(truth.w_kd.contiguous()),
        random_(static_cast<uint64_t>(config.seed), stream_id("gated." + split)) {}

  void make(int64_t first, int64_t count, float* x_Nd, float* y_N) const {
    std::vector<float> numbers(static_cast<size_t>((d_ + 1) * kPart)), choice(kPart);
    std::vector<float> work(static_cast<size_t>((2 * k_) * kPart));
    random_.normals(first, count, d_ + 1, numbers.data(), kPart);
    random_.uniforms(first, count, d_ / 4 + 1, choice.data());
    float *const products = work.data(), *const logits = products + k_ * kPart;
    project(numbers.data(), a_.const_data_ptr<float>(), k_, products);
    project(numbers.data(), w_.const_data_ptr<float>(), k_ - 1, logits);
    const float* const noise = numbers.data() + d_ * kPart;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t expert = chosen(logits + i, choice[static_cast<size_t>(i)]);
      y_N[i] = value(products[expert * kPart + i]) + noise_ * noise[i];
    }
    for (int64_t j = 0; j < d_; ++j) {
      for (int64_t i = 0; i < count; ++i) {
        x_Nd[i * d_ + j] = numbers[static_cast<size_t>(j * kPart + i)];
      }
    }
  }

 private:
  void project(const float* x, const float* weights, int64_t rows, float* to) const {
    for (int64_t i = 0; i < rows; ++i) {
      float* const out = to + i * kPart;
      std::fill_n(out, kPart, 0.0f);
      for (int64_t j = 0; j < d_; ++j) {
        const float weight = weights[i * d_ + j];
        for (int64_t s = 0; s < kPart; ++s) out[s] += weight * x[j * kPart + s];
      }
    }
  }

  /// Returns the expert that the gates give to u in [0, 1); `logits` are a part apart, the last 0.
  int64_t chosen(const float* logits, float u) const {
    float max = 0.0f;
    for (int64_t i = 0; i + 1 < k_; ++i) max = std::max(max, logits[i * kPart]);
    float sum = std::exp(-max);
    for (int64_t i = 0; i + 1 < k_; ++i) sum += std::exp(logits[i * kPart] - max);
    float rest = u * sum;
    for (int64_t i = 0; i + 1 < k_; ++i) {
      rest -= std::exp(logits[i * kPart] - max);
      if (rest < 0.0f) return i;
    }
    return k_ - 1;
  }

  float value(float z) const {
    return with_link(link_, [&](auto kind) { return link_at<decltype(kind)::value>(z).value; });
  }

  int64_t d_, k_;
  float noise_;
  Link link_;
  at::Tensor a_, w_;
  SampleRandom random_;
};

}  // namespace

ConfigProblem config_problem(const GatedMixtureConfig& config) {
  if (2 * config.experts - 1 <= config.width) return {};
  return {fmt::format("{} experts have {} regressors and gates, which must be independent "
                      "(assumption 3): {} dimensions are too few, at most {} experts fit",
                      config.experts, 2 * config.experts - 1, config.width, (config.width + 1) / 2),
          {"experts", "width"}};
}

GatedTruth gated_truth(const GatedMixtureConfig& config) {
  const int64_t k = config.experts, all = 2 * k - 1;
  const at::Tensor axes = at::eye(config.width, at::kDouble).narrow(0, 0, all);
  const at::Tensor orthogonal =
      std::get<0>(at::linalg_qr(normal_rows(config, "gated.orthogonal", all).t())).t();
  const auto directions = [&](const std::string& kind, const char* purpose, int64_t first,
                              int64_t count) {
    if (kind == kAxes) return axes.narrow(0, first, count);
    if (kind == kOrthogonal) return orthogonal.narrow(0, first, count);
    return unit_rows(normal_rows(config, purpose, count));
  };
  const at::Tensor a = directions(config.regressors, "gated.regressors", 0, k);
  const at::Tensor w = directions(config.gates, "gated.gates", k, k - 1) * config.gate_norm;
  return {a.to(at::kFloat).contiguous(), w.to(at::kFloat).contiguous()};
}

GatedExamples gated_examples(const GatedMixtureConfig& config, const GatedTruth& truth,
                             const std::string& split, int64_t first, int64_t count) {
  GatedExamples out{at::empty({count, config.width}, at::kFloat), at::empty({count}, at::kFloat)};
  const ExampleMaker maker(config, truth, split);
  auto *const x = out.x_Nd.mutable_data_ptr<float>(), *const y = out.y_N.mutable_data_ptr<float>();
  const int64_t parts = (count + kPart - 1) / kPart;
  at::parallel_for(0, parts, 16, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t at = part * kPart;
      maker.make(first + at, std::min(kPart, count - at), x + at * config.width, y + at);
    }
  });
  return out;
}

}  // namespace moesaic
