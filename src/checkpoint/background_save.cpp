// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/background_save.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <utility>

namespace moesaic {
namespace {

class Stopwatch {
 public:
  /// Returns the seconds since the last lap or the start.
  double lap() {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(begin_, now)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

bool takes(const at::Tensor& copy, const at::Tensor& tensor) {
  return copy.defined() && copy.layout() == at::kStrided && copy.sizes() == tensor.sizes() &&
         copy.scalar_type() == tensor.scalar_type();
}

}  // namespace

void snapshot(const TensorMap& tensors, TensorMap& copy) {
  const at::NoGradGuard no_grad;
  std::erase_if(copy, [&](const auto& item) { return !tensors.contains(item.first); });
  for (const auto& [name, tensor] : tensors) {
    at::Tensor& own = copy[name];
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      own = tensor;  // Writing it says what is wrong with it.
      continue;
    }
    if (!takes(own, tensor)) own = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    own.copy_(tensor);
  }
}

std::optional<SaveTimes> BackgroundSave::start(const CheckpointPart& part, Write write) {
  Stopwatch watch;
  const std::optional<SaveTimes> before = wait();
  running_ = {.wait = watch.lap()};
  snapshot(part.model, copy_.model);
  snapshot(part.optimizer, copy_.optimizer);
  running_.copy = watch.lap();
  task_.start([this, write = std::move(write)] {
    Stopwatch writing;
    write(copy_);
    running_.write = writing.lap();
    ended_ = running_;
  });
  return before;
}

std::optional<SaveTimes> BackgroundSave::poll() {
  return task_.poll() ? std::exchange(ended_, std::nullopt) : std::nullopt;
}

std::optional<SaveTimes> BackgroundSave::wait() {
  task_.wait();
  return std::exchange(ended_, std::nullopt);
}

}  // namespace moesaic
