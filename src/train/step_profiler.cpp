// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/step_profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <set>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"

namespace moesaic {

namespace profiler = torch::autograd::profiler;

ProfiledSteps parse_profiled_steps(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() == 2) {
    const auto from = parsed_number<int64_t>(parts[0]), count = parsed_number<int64_t>(parts[1]);
    if (from && count && *from >= 1 && *count >= 1) return {*from, *count};
  }
  fail_usage(
      "--profile: {} is not FROM:STEPS, two whole numbers of at least 1; write e.g. 100:5 for five "
      "steps from step 100 on",
      printable(text));
}

StepProfiler::StepProfiler(const ProfiledSteps& steps, fs::path file, const std::string& device)
    : steps_(steps), file_(std::move(file)), is_on_gpu_(device != "cpu") {
  // Kineto would write lines of its own, e.g. where a build for GPUs finds none.
  ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
}

StepProfiler::~StepProfiler() {
  if (state_ == State::recording) profiler::disableProfiler();
}

void StepProfiler::before_step(int64_t made) {
  // Chunks of steps, and a resumed run, may jump over numbers.
  if (state_ == State::waiting && made >= steps_.from - 1) {
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                       /*report_input_shapes=*/true);
    std::set activities = {torch::profiler::impl::ActivityType::CPU};
    if (is_on_gpu_) activities.insert(torch::profiler::impl::ActivityType::CUDA);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    state_ = State::recording;
    steps_.from = made + 1;
  } else if (state_ == State::recording && made - (steps_.from - 1) >= steps_.count) {
    write();
  }
}

void StepProfiler::finish(int64_t made) {
  if (state_ == State::recording && made >= steps_.from) return write();
  if (state_ == State::written) return;
  log_warning("--profile: the run ended before step {}; there is no trace", steps_.from);
}

void StepProfiler::write() {
  state_ = State::written;
  const auto result = profiler::disableProfiler();
  std::error_code none;
  fs::remove(file_, none);  // An older one would hide that this one was not written.
  result->save(file_.string());
  if (!fs::exists(file_, none)) fail("{}: cannot write the trace", file_.string());
  log_info("trace of steps from {} on: {}", steps_.from, file_.string());
}

}  // namespace moesaic
