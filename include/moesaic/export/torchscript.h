// SPDX-License-Identifier: Apache-2.0
// Export to TorchScript, which LibTorch and PyTorch run without this library.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <filesystem>

#include "moesaic/export/info.h"

namespace moesaic {

/// Returns the network as a script module: forward(images [B, C, H, W] float32) -> logits
/// [B, classes], for any B, with aten operators only. Its parameters are copies under the names of
/// the state dict (`blocks.0.attention.qkv.weight`, ...); fixed position embeddings are a buffer.
/// Routing is exact: ties to the lower expert, capacities, groups and drops as in
/// route_token_choice(); pruned experts add zero and are never computed. Throws Error (usage) for a
/// family without TorchScript export.
torch::jit::Module to_torchscript(const Model& model);

/// Writes to_torchscript() atomically. Extra files are the texts of side_files() and, so that this
/// library reads the network without unpickling, what export_safetensors() writes: the weights lie
/// in the file twice. PyTorch deprecates TorchScript as of version 2.11: prefer safetensors
/// (export/safetensors.h) for archives.
void export_torchscript(const Model& model, const std::filesystem::path& file,
                        const ExportInfo& info = {});

}  // namespace moesaic
