// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "moesaic/nn/experts.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

struct MapExpertsOptions {
  int64_t experts = 1;                     ///< Number of experts, K.
  int64_t channels = 0, side = 0;          ///< Shape of the feature map, C and S.
  int64_t patch = 1;                       ///< Side of a patch, which divides that of the map.
  int64_t outputs = 0;                     ///< Channels that an expert makes, o.
  int64_t kernel = 1;                      ///< Side of its convolution's kernel, odd.
  double epsilon = 1e-3, momentum = 0.01;  ///< Of its normalisation.

  int64_t patches() const { return side / patch * (side / patch); }
  /// Returns the side of what a patch reaches in the convolution's output.
  int64_t window() const { return patch + kernel - 1; }
};

/// Experts of WRN-pMoE (pMoE paper, section 5.2): an expert sees the map with the patches that it
/// selected, each times its gate, and zeros in place of all others, and computes batch
/// normalisation, ReLU and a convolution with biases, whose border is zeros.
///
/// What it did not select has the same value at every position behind the ReLU, so the convolution
/// is made of that value's, which all images share, and of what the selected patches add to it.
/// Routings are those of expert choice by image: every expert has as many patches of each image.
/// A token is a patch as from patches_of(), images one after another. Parameters `weight` and
/// `bias` [K, C] of the normalisation, `w` [K, o, C, kernel, kernel], `b` [K, o]; buffers
/// `running_mean` and `running_var` [K, C].
class MapExpertsImpl : public Experts, public SharesBatch {
 public:
  MapExpertsImpl(const MapExpertsOptions& options, const at::Generator& generator);

  /// Computes patches x_Td [T, C p p] -> the experts' maps side by side, [T, K o p p].
  ExpertsOutput forward(const at::Tensor& x_Td, const Routing& routing,
                        const at::Generator& random) override;
  /// Computes what each selected patch, times its gate and by the running statistics, adds to the
  /// map without it: windows [A, o q q] of side q = patch + kernel - 1.
  ExpertRows compute(const at::Tensor& x_Td, const Routing& routing,
                     const at::Generator& random) override;
  int64_t count() const override { return w.size(0); }
  Sharing sharing() const override { return Sharing::side_by_side; }
  int64_t outputs() const override {
    return options_.outputs * options_.window() * options_.window();
  }
  int64_t token_outputs() const override {
    return count() * options_.outputs * options_.patch * options_.patch;
  }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(options_.patch * options_.patch * w[0].numel());
  }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override {
    return {.hidden = {values(w)[slot].flatten(1)}, .others = {}};
  }
  ExpertsScript script_source() const override;

  const MapExpertsOptions& options() const { return options_; }

  at::Tensor weight, bias, w, b, running_mean, running_var;

 private:
  /// Mean and variance over a whole map, [K, C].
  struct Statistics {
    at::Tensor mean, var;
  };
  /// Returns the selected patches times their gates, [K, R, C, p p].
  at::Tensor gated_rows(const at::Tensor& x_Td, const Routing& routing) const;
  /// Returns the statistics of maps of `images` images; training moves the running ones.
  Statistics statistics(const at::Tensor& rows_KRCp, int64_t images);
  /// What is behind ReLU: rest_KC [K, C] where nothing was selected, and how much more the selected
  /// patches have, [K, R, C, p p].
  struct Active {
    at::Tensor more_KRCp, rest_KC;
  };
  Active activate(const at::Tensor& rows_KRCp, const Statistics& of) const;
  /// Convolves rows_KRCp by its expert -> windows [K, R, q, q, o], without bias.
  at::Tensor convolve(const at::Tensor& rows_KRCp) const;

  MapExpertsOptions options_;
};
TORCH_MODULE(MapExperts);

}  // namespace moesaic::nn
