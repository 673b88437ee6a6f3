// SPDX-License-Identifier: Apache-2.0
// Programs of torch.export (.pt2), which LibTorch's own runner computes without Python.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/base/filesystem.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/models/model.h"

namespace torch::nativert {
class ModelRunnerHandle;
}

namespace moesaic {

/// Returns whether a file is a zip archive with the graph of a program.
bool is_exported_program(const fs::path& file);

/// A program in memory, on the CPU.
class ExportedProgram {
 public:
  /// Loads the program named "model" of a file. Throws Error (failure), before anything is run,
  /// where a checksum of the archive differs, its bytes exceed the memory, or LibTorch cannot run
  /// it.
  explicit ExportedProgram(const fs::path& file);
  ExportedProgram(const ExportedProgram&) = delete;
  ExportedProgram& operator=(const ExportedProgram&) = delete;
  ~ExportedProgram();

  /// Returns the first output for images_BCHW [B, C, H, W], float32 or, by takes_bytes of
  /// InputSpec, uint8: logits. Throws Error (failure).
  at::Tensor run(const at::Tensor& images_BCHW) const { return outputs(images_BCHW).front(); }
  /// Returns all outputs, see run().
  std::vector<at::Tensor> outputs(const at::Tensor& images_BCHW) const;

 private:
  fs::path file_;
  std::unique_ptr<torch::nativert::ModelRunnerHandle> runner_;
};

/// Returns a network whose forward pass is the program; it has no parameters, and its logits come
/// without features and routing. `shape` is the network that was exported, on the meta device. One
/// that takes bytes gets the bytes of which images were normalised, by `input`.
std::shared_ptr<Model> program_model(const fs::path& file, std::shared_ptr<Model> shape,
                                     const InputSpec& input = {});

}  // namespace moesaic
