// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "moesaic/nn/experts.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// Experts that are separate convolutional networks (clusters paper, section 6.2), children "0" to
/// "K-1". Batch normalisation of an expert sees only the images of that expert. A neuron is an
/// output channel of a convolution, or an output of a linear layer.
class ImageExpertsImpl : public Experts, public SharesBatch {
 public:
  /// `network` is one of image_network_names(). Throws Error (usage) for another name.
  ImageExpertsImpl(const std::string& network, int64_t experts, const ImageNetworkOptions& options,
                   const at::Generator& generator);

  /// Computes images_TCHW [T, C, S, S] -> outputs [A, classes] and embeddings [A, d']. Waits for
  /// the offsets on the host; an expert without images is not computed.
  ExpertRows compute(const at::Tensor& images_TCHW, const Routing& routing,
                     const at::Generator& random) override;
  Sharing sharing() const override { return Sharing::rows; }
  /// Those of other processes keep no memory meanwhile.
  void share_out(const std::vector<int64_t>& slots) override;
  void gather(const Group& group) override;
  bool names_experts() const override { return true; }
  void keep(const std::vector<int64_t>& slots) override;
  int64_t count() const override { return static_cast<int64_t>(networks_.size()); }
  int64_t outputs() const override { return networks_.front()->head->options.out_features(); }
  double flops_per_row() const override { return networks_.front()->flops(); }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override;
  ExpertsScript script_source() const override;

  /// Gives every network a new head of zeros with `classes` outputs.
  void reset_heads(int64_t classes);

  const std::shared_ptr<ImageNetwork>& network(int64_t slot) const {
    return networks_.at(static_cast<size_t>(slot));
  }

 private:
  using Networks = std::vector<std::shared_ptr<ImageNetwork>>;

  /// Makes these the children, named by their place from `first` on.
  void set_networks(Networks networks, int64_t first = 0);

  Networks networks_;
  Networks all_;  ///< While experts are shared out.
};
TORCH_MODULE(ImageExperts);

}  // namespace moesaic::nn
