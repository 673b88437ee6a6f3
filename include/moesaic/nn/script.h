// SPDX-License-Identifier: Apache-2.0
// Script modules that stand for modules of the framework, one function a kind. Each has its
// original's parameters under the same names, children under the same names, and a `forward` in
// TorchScript source: Python's syntax, where torch.x is the aten operator x.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/nn/encoder_block.h"
#include "moesaic/nn/map_head.h"

namespace moesaic::script {

using torch::jit::Module;
using Children = std::vector<std::pair<std::string, Module>>;

/// All classes of one exported network are compiled in one unit.
using Unit = std::shared_ptr<torch::jit::CompilationUnit>;

/// `kind` names the class. Copies the parameters and buffers of `from` itself, not those of its
/// children; `source` may define several methods, "" none.
Module make_module(const Unit& unit, const std::string& kind, const torch::nn::Module& from,
                   const Children& children, const std::string& source);

Module make_linear(const Unit& unit, const torch::nn::LinearImpl& from);
Module make_layer_norm(const Unit& unit, const torch::nn::LayerNormImpl& from);
Module make_encoder_block(const Unit& unit, const nn::EncoderBlockImpl& from);
Module make_map_head(const Unit& unit, const nn::MapHeadImpl& from);
Module make_moe_layer(const Unit& unit, const nn::MoELayerImpl& from);

/// What messages offer instead of the TorchScript form that a network lacks.
inline constexpr const char* kOtherFormat = "--format safetensors holds every network";

/// A number as source text that reads back as exactly the same number.
std::string literal(double number);

}  // namespace moesaic::script
