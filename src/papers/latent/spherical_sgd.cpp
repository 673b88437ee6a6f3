// SPDX-License-Identifier: Apache-2.0
#include "spherical_sgd.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/ops/check_tensor.h"
#include "moesaic/ops/memory.h"
#include "moesaic/ops/parallel_panels.h"
#include "spherical_kernel.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr const char* kSphericalSgd = "spherical_sgd";

void check_plain(const char* name, const Tensor& tensor, std::initializer_list<c10::SymInt> shape) {
  if (!tensor.defined()) fail("{}: {} is missing", kSphericalSgd, name);
  ops::check_shape(kSphericalSgd, name, tensor, shape);
  if (!tensor.is_cpu() || !tensor.is_contiguous()) {
    fail("{}: {} must be contiguous and on the CPU", kSphericalSgd, name);
  }
}

void check_floats(const char* name, const Tensor& tensor,
                  std::initializer_list<c10::SymInt> shape) {
  check_plain(name, tensor, shape);
  if (tensor.scalar_type() != at::kFloat) {
    fail("{}: {} must be float32, found {}", kSphericalSgd, name,
         c10::toString(tensor.scalar_type()));
  }
}

void check_neurons(const SphericalNeurons& neurons) {
  check_floats("w_Nd", neurons.w_Nd, {-1, -1});
  const int64_t count = neurons.w_Nd.size(0);
  if (neurons.w_Nd.size(1) < 1) fail("{}: w_Nd must have a column", kSphericalSgd);
  check_floats("a_N", neurons.a_N, {count});
  check_floats("b_N", neurons.b_N, {count});
  if (neurons.hermite_NK.defined()) {
    check_floats("hermite_NK", neurons.hermite_NK, {count, -1});
    if (neurons.hermite_NK.size(1) < 1) fail("{}: hermite_NK must have a column", kSphericalSgd);
  }
}

void check_routed(const RoutedSamples& samples, const SphericalNeurons& neurons) {
  check_floats("x_Sd", samples.x_Sd, {-1, neurons.w_Nd.size(1)});
  check_floats("y_S", samples.y_S, {samples.x_Sd.size(0)});
  check_plain("offset", samples.offset, {-1});
  check_plain("sample", samples.sample, {-1});
  check_floats("gate", samples.gate, {samples.sample.size(0)});
  if (samples.offset.scalar_type() != at::kLong) {
    fail("{}: offset must be int64, found {}", kSphericalSgd,
         c10::toString(samples.offset.scalar_type()));
  }
  const auto type = samples.sample.scalar_type();
  if (type != at::kLong && type != at::kInt) {
    fail("{}: sample must be int64 or int32, found {}", kSphericalSgd, c10::toString(type));
  }
  const int64_t experts = samples.offset.size(0) - 1, count = neurons.w_Nd.size(0);
  if (experts < 1) fail("{}: offset must have at least 2 entries", kSphericalSgd);
  if (count % experts != 0) {
    fail("{}: {} neurons do not fall into {} experts of equal width", kSphericalSgd, count,
         experts);
  }
  const auto* offset = samples.offset.const_data_ptr<int64_t>();
  if (offset[0] != 0 || !std::is_sorted(offset, offset + experts + 1) ||
      offset[experts] != samples.sample.size(0)) {
    fail("{}: offset must ascend from 0 to {}, the length of sample", kSphericalSgd,
         samples.sample.size(0));
  }
}

/// Chunks of the samples of each expert: those of expert m are [offset[m], offset[m + 1]), the last
/// one padded.
class SampleChunks {
 public:
  SampleChunks(const RoutedSamples& samples, double step, const ops::SphericalKernel& kernel)
      : width_(samples.x_Sd.size(1)), numbers_(ops::chunk_size(width_)) {
    const auto* from = samples.offset.const_data_ptr<int64_t>();
    for (int64_t m = 0; m + 1 < samples.offset.size(0); ++m) {
      for (int64_t i = from[m]; i < from[m + 1]; i += ops::kChunkSamples) {
        parts_.push_back({i, std::min<int64_t>(ops::kChunkSamples, from[m + 1] - i)});
      }
      offset_.push_back(static_cast<int32_t>(parts_.size()));
    }
    memory_ = ops::empty_large({static_cast<int64_t>(parts_.size()) * numbers_}, at::kFloat);
    pack(samples, step, kernel);
  }

  const int32_t* offset() const { return offset_.data(); }
  int64_t experts() const { return static_cast<int64_t>(offset_.size()) - 1; }
  const float* at(int64_t chunk) const {
    return memory_.const_data_ptr<float>() + chunk * numbers_;
  }

 private:
  /// Routed samples [first, first + count).
  struct Part {
    int64_t first, count;
  };

  void pack(const RoutedSamples& samples, double step, const ops::SphericalKernel& kernel) {
    const Tensor sample_A = samples.sample.to(at::kLong);
    const auto* const sample = sample_A.const_data_ptr<int64_t>();
    const auto *const x = samples.x_Sd.const_data_ptr<float>(),
                      *const y = samples.y_S.const_data_ptr<float>(),
                      *const gate = samples.gate.const_data_ptr<float>();
    const int64_t count = samples.x_Sd.size(0);
    for (int64_t i = 0; i < sample_A.size(0); ++i) {
      if (sample[i] < 0 || sample[i] >= count) {
        fail("{}: sample {} is out of range: there are {}", kSphericalSgd, sample[i], count);
      }
    }
    auto* const to = memory_.mutable_data_ptr<float>();
    const std::vector<float> missing(static_cast<size_t>(width_), 0.0F);
    constexpr int64_t kChunksPerTask = 16;
    const auto all = static_cast<int64_t>(parts_.size());
    at::parallel_for(0, all, kChunksPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const Part part = parts_[static_cast<size_t>(chunk)];
        std::array<const float*, ops::kChunkSamples> rows;
        std::array<float, ops::kChunkSamples> strength{};
        rows.fill(missing.data());
        for (int64_t s = 0; s < part.count; ++s) {
          const int64_t a = part.first + s, i = sample[a];
          rows[static_cast<size_t>(s)] = x + i * width_;
          strength[static_cast<size_t>(s)] = static_cast<float>(step * gate[a] * y[i]);
        }
        kernel.pack(rows.data(), strength.data(), width_, to + chunk * numbers_);
      }
    });
  }

  int64_t width_, numbers_;
  std::vector<int32_t> offset_ = {0};
  std::vector<Part> parts_;
  Tensor memory_;
};

}  // namespace

void ops::spherical_sgd_by(const SphericalKernel& kernel, SphericalNeurons& neurons,
                           const RoutedSamples& samples, double step) {
  check_neurons(neurons);
  check_routed(samples, neurons);
  if (!std::isfinite(step)) fail("{}: step must be finite, found {}", kSphericalSgd, step);
  const SampleChunks chunks(samples, step, kernel);
  const int64_t width = neurons.w_Nd.size(1), hidden = neurons.w_Nd.size(0) / chunks.experts();
  SphericalRows rows{neurons.w_Nd.mutable_data_ptr<float>(),
                     neurons.a_N.const_data_ptr<float>(),
                     neurons.b_N.const_data_ptr<float>(),
                     nullptr,
                     0,
                     width};
  if (neurons.hermite_NK.defined()) {
    rows.hermite = neurons.hermite_NK.const_data_ptr<float>();
    rows.coefficients = neurons.hermite_NK.size(1);
  }
  const int64_t bytes = kernel.scratch_size(width, rows.coefficients) * 4;
  for_panels(panels_of(chunks.offset(), chunks.experts(), hidden, kernel.lanes), bytes,
             [&](const Panel& panel, uint8_t* scratch) {
               kernel.advance(rows, panel.expert * hidden + panel.column, panel.columns,
                              chunks.at(panel.begin), panel.rows(),
                              Scratch(scratch).take<float>(bytes / 4));
             });
}

void spherical_sgd(SphericalNeurons& neurons, const RoutedSamples& samples, double step) {
  static const ops::SphericalKernel kernel = ops::spherical_kernels().front();
  ops::spherical_sgd_by(kernel, neurons, samples, step);
}

}  // namespace moesaic
