// SPDX-License-Identifier: Apache-2.0
// Traces of some steps of a run, for chrome://tracing and Perfetto.
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// Steps of a run: `count` of them from step `from` on, where the first step is 1.
struct ProfiledSteps {
  int64_t from = 1, count = 1;
};

/// Reads "FROM:STEPS". Throws Error (usage) for anything but two whole numbers of at least 1.
ProfiledSteps parse_profiled_steps(const std::string& text);

/// Records what operators do in some steps, by LibTorch's profiler (Kineto). All calls are made on
/// the thread that trains.
class StepProfiler {
 public:
  /// Records the GPU's kernels too where `device` is not "cpu".
  StepProfiler(const ProfiledSteps& steps, fs::path file, const std::string& device = "cpu");
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  /// Ends a recording without writing it.
  ~StepProfiler();

  /// Called before each step with the number of steps made; writes the trace after the last step to
  /// record. Throws Error where the file cannot be written.
  void before_step(int64_t made);
  /// Writes a recording that the end of the run, after so many steps, cut short, and warns where
  /// there is none.
  void finish(int64_t made);

 private:
  void write();

  ProfiledSteps steps_;
  fs::path file_;
  bool is_on_gpu_;
  enum class State { waiting, recording, written } state_ = State::waiting;
};

}  // namespace moesaic
