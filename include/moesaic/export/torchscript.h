// SPDX-License-Identifier: Apache-2.0
// A network as a TorchScript program that any LibTorch or PyTorch runs without this library.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <filesystem>

#include "moesaic/export/info.h"

namespace moesaic {

/// The network as a script module: forward(images [B, C, H, W] float32) -> logits [B, classes], for
/// any B, with aten operators only. Its parameters carry the names of the state dict
/// (`blocks.0.attention.qkv.weight`, ...) and are copies; position waves are its buffer. Routing is
/// exact: ties to the lower expert, capacities, groups and drops as in route_token_choice(); pruned
/// experts add zero and are never computed. Throws Error (usage) for a family that has no such
/// form.
torch::jit::Module to_torchscript(const Model& model);

/// Writes to_torchscript() atomically; the texts of side_files() are its extra files. Upstream has
/// deprecated TorchScript as of version 2.11: safetensors (export/safetensors.h) is the form that
/// lasts.
void export_torchscript(const Model& model, const std::filesystem::path& file,
                        const ExportInfo& info = {});

}  // namespace moesaic
