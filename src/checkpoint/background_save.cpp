// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/background_save.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>
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

/// Copies a tensor and returns whether it is finite: in pieces, which are summed while they are in
/// the cache.
bool copy_finite(const at::Tensor& from, at::Tensor& to) {
  constexpr int64_t kPiece = int64_t{1} << 17;
  if (!from.is_cpu() || !from.is_contiguous()) return all_finite(to.copy_(from));
  const at::Tensor source = from.view({-1}), target = to.view({-1});
  bool finite = true;
  for (int64_t first = 0; first < source.numel(); first += kPiece) {
    at::Tensor piece = target.slice(0, first, first + kPiece);
    finite = all_finite(piece.copy_(source.slice(0, first, first + kPiece))) && finite;
  }
  return finite;
}

}  // namespace

std::string snapshot(const TensorMap& tensors, TensorMap& copy, bool check) {
  const at::NoGradGuard no_grad;
  std::string bad;
  std::erase_if(copy, [&](const auto& item) { return !tensors.contains(item.first); });
  for (const auto& [name, tensor] : tensors) {
    at::Tensor& own = copy[name];
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      own = tensor;  // Writing it says what is wrong with it.
      continue;
    }
    if (!takes(own, tensor)) own = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    if (!check) {
      own.copy_(tensor);
    } else if (!copy_finite(tensor, own)) {
      bad = name;
    }
  }
  return bad;
}

std::optional<SaveTimes> BackgroundSave::start(CheckpointPart part, Write write,
                                               const std::function<void()>& wait_first) {
  Stopwatch watch;
  if (wait_first) wait_first();
  const std::optional<SaveTimes> before = wait();
  times_ = {.wait = watch.lap()};
  std::promise<bool> copied;
  copied_ = copied.get_future();
  // A task that is copied holds the promise by a pointer.
  task_.start([this, part = std::move(part), write = std::move(write),
               copied = std::make_shared<std::promise<bool>>(std::move(copied))] {
    try {
      copy(part);
    } catch (...) {
      copied->set_value(false);
      throw;
    }
    copied->set_value(true);  // Training may have waited for the copy, so that came first.
    task_.yield_to_others();
    Stopwatch writing;
    write(copy_);
    write_ = writing.lap();
  });
  return before;
}

void BackgroundSave::copy(const CheckpointPart& part) {
  const std::string bad = snapshot(part.model, copy_.model, true);
  if (!bad.empty()) throw NotFinite(fmt::format("'{}' holds NaN or infinity", bad));
  snapshot(part.optimizer, copy_.optimizer);
}

void BackgroundSave::finish_copy() {
  if (!copied_.valid()) return;
  Stopwatch watch;
  const bool whole = copied_.get();
  times_.copy = watch.lap();
  if (!whole) task_.wait();  // Throws what made it fail.
}

std::optional<SaveTimes> BackgroundSave::poll() {
  return task_.poll() ? take_times() : std::nullopt;
}

std::optional<SaveTimes> BackgroundSave::wait() {
  task_.wait();
  return take_times();
}

std::optional<SaveTimes> BackgroundSave::take_times() {
  const std::optional<double> write = std::exchange(write_, std::nullopt);
  if (!write) return std::nullopt;
  times_.write = *write;
  return times_;
}

}  // namespace moesaic
