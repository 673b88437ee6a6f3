// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/gradients.h"

#include <torch/torch.h>
#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace moesaic {
namespace {

constexpr size_t kFirstBucket = size_t{1} << 20;  // As in c10d's DDP.

class SilentHandler : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

struct GradientReducer::State {
  std::unique_ptr<c10d::Reducer> reducer;
  TrafficCounter* counter = nullptr;  ///< Null: nothing is reduced.
  Traffic traffic = Traffic::gradients;
  double bytes = 0.0;
  int64_t buckets = 0;
};

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, const Group& group,
                                 Traffic traffic, size_t bucket_bytes)
    : state_(std::make_unique<State>()) {
  if (group.size() == 1 || parameters.empty()) return;
  // The last parameters have their gradients first.
  std::reverse(parameters.begin(), parameters.end());
  const auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucket, bucket_bytes});
  double bytes = 0.0;
  for (const at::Tensor& parameter : parameters) bytes += static_cast<double>(parameter.nbytes());
  state_->counter = &group.counter();
  state_->traffic = traffic;
  state_->bytes = all_reduce_bytes(bytes, group.size());
  state_->buckets = static_cast<int64_t>(buckets.size());
  if (!group.c10d()) return;
  const std::vector<bool> sparse(parameters.size(), false);
  state_->reducer = std::make_unique<c10d::Reducer>(
      std::move(parameters), buckets, group.c10d(), sparse, static_cast<int64_t>(bucket_bytes),
      /*find_unused_parameters=*/true, /*gradient_as_bucket_view=*/true,
      std::unordered_map<size_t, std::string>(), kFirstBucket,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>());
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::prepare(const at::Tensor& loss) {
  if (state_->counter == nullptr) return;
  state_->counter->add(state_->traffic, state_->bytes, state_->buckets);
  if (!state_->reducer) return;
  // It warns where no parameter is unused, which is not known before.
  SilentHandler silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  state_->reducer->prepare_for_backward({loss});
}

}  // namespace moesaic
