// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/shared_gradients.h"

#include <torch/torch.h>

#include "moesaic/parallel/group.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/train/clip.h"
#include "moesaic/train/expert_shares.h"

namespace moesaic {
namespace {

/// Returns the parameters that require gradients and are, or are not, of shared experts.
std::vector<at::Tensor> trained(const Model& model, bool shared) {
  const ExpertShares shares(model);
  std::vector<at::Tensor> chosen;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && shares.has(item.key()) == shared) {
      chosen.push_back(item.value());
    }
  }
  return chosen;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

SharedGradients::SharedGradients(const Model& model, std::shared_ptr<const Processes> processes)
    : processes_(std::move(processes)),
      dense_(trained(model, false)),
      experts_(trained(model, true)),
      of_dense_(dense_, processes_->gradients(), Traffic::gradients),
      of_experts_(experts_, processes_->replicas(), Traffic::expert_gradients) {}

void SharedGradients::backward(const at::Tensor& loss) try {
  of_dense_.prepare(loss);
  of_experts_.prepare(loss);
  loss.backward();
  finish();
} catch (const Error&) {
  throw;
} catch (const c10::DistError& error) {
  throw LostProcess(error.what_without_backtrace());
} catch (const c10::Error&) {
  throw;
} catch (const std::exception& error) {  // Gloo's, which the Reducer hands on.
  throw LostProcess(error.what());
}

void SharedGradients::finish() {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(experts_);
  if (gradients.empty()) return;
  at::_foreach_mul_(gradients, 1.0 / static_cast<double>(processes_->experts().size()));
}

at::Tensor SharedGradients::norm() const {
  const torch::NoGradGuard no_grad;
  const at::Tensor dense = gradient_norm(gradients_of(dense_));
  if (experts_.empty()) return dense;
  at::Tensor squared = gradient_norm(gradients_of(experts_)).square().reshape({1});
  processes_->experts().all_reduce(squared, Traffic::metrics);
  return (dense.square() + squared[0]).sqrt();
}

}  // namespace moesaic
