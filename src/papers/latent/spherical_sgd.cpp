// SPDX-License-Identifier: Apache-2.0
#include "spherical_sgd.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "moesaic/ops/memory.h"
#include "moesaic/ops/parallel_panels.h"
#include "spherical_kernel.h"

namespace moesaic {
namespace {

using at::Tensor;

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
