// SPDX-License-Identifier: Apache-2.0
// TorchScript counterparts of the modules in nn, one function per kind. Each has the original's
// parameters and children under the same names, and a `forward` in TorchScript source, which is
// Python's syntax where torch.x is the aten operator x. In Python's dialect, with a fixed number of
// rows where there is a capacity, that source is a network of stock PyTorch.
#pragma once

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/nn/encoder_block.h"

namespace moesaic::script {

using torch::jit::Module;
using Children = std::vector<std::pair<std::string, Module>>;

/// Reader of the methods.
enum class Dialect {
  torchscript,  ///< LibTorch compiles them.
  python        ///< Python runs them, and torch.export and ONNX record them: no size depends on
                ///< values but the rows of an expert without a capacity, unless it was recorded,
                ///< and sizes are computed from positive numbers alone.
};

/// Dialect and compilation unit in which the modules of one exported network are made.
struct Context {
  Dialect dialect = Dialect::torchscript;
  std::shared_ptr<torch::jit::CompilationUnit> compilation_unit =
      std::make_shared<torch::jit::CompilationUnit>();
};

/// Whether a script module has copies of tensors, or shares them.
enum class Copy : bool { no, yes };

/// Makes a script module of class `kind`. The module gets the parameters and buffers of `from`
/// itself, not those of its children; `source` may define several methods, "" none. In Python's
/// dialect methods are not compiled but kept as text, see python_classes().
Module make_module(const Context& context, const std::string& kind, const torch::nn::Module& from,
                   const Children& children, const std::string& source, Copy copy = Copy::yes);

/// Makes forward(x), a linear layer.
Module make_linear(const Context& context, const torch::nn::LinearImpl& from);
/// Makes forward(x), layer normalisation.
Module make_layer_norm(const Context& context, const torch::nn::LayerNormImpl& from);
/// Makes forward(x), batch normalisation of the channels in dimension 1.
Module make_batch_norm(const Context& context, const torch::nn::BatchNorm1dImpl& from);
/// Makes a block that computes what EncoderBlockImpl::forward() does in evaluation.
Module make_encoder_block(const Context& context, nn::EncoderBlockImpl& from);
/// Makes a head that computes what MapHeadImpl::forward() does in evaluation.
Module make_map_head(const Context& context, nn::MapHeadImpl& from);
/// Makes forward(x, inputs), see MoELayerImpl::forward(); `shape` is that of one input of the
/// experts.
Module make_moe_layer(const Context& context, const nn::MoELayerImpl& from,
                      const std::vector<int64_t>& shape);
/// Makes one_by_one(rows [A, ...], counts) -> [A, o], where counts[e] consecutive rows belong to
/// expert e. MLPs also have all_at_once(rows [K, C, d]) -> [K, C, d], with C rows for each expert.
/// Experts of maps have mix(x [T, d], gates [T, K]) -> [T, K o p p] instead. `shape` is that of one
/// row.
Module make_experts(const Context& context, const nn::Experts& from,
                    const std::vector<int64_t>& shape);

/// Returns one_by_one(), see make_experts(). `lines` and the expression `result`, of `outputs`
/// columns, are of one expert: `x` are its rows, and each of the stacked `tensors` is its own part.
std::string expert_loop_source(int64_t outputs, const std::vector<std::string>& tensors,
                               const std::string& lines, const std::string& result);

/// Returns the source of an expression that applies the activation to the variable `hidden`.
std::string activation_source(Activation activation);

/// Makes a network by recording what `forward` computes in evaluation, which has to be the same for
/// all inputs [B, shape]. Sizes that it reads of an input are part of what is recorded.
Module make_traced(const Context& context, torch::nn::Module& from,
                   const std::function<at::Tensor(const at::Tensor&)>& forward,
                   const std::vector<int64_t>& shape);

/// Returns the lines with which forward(images) begins: a check of their shape [C, H, W].
std::string input_check_source(const std::vector<int64_t>& shape);

/// Hint of messages about a network that has no TorchScript form.
inline constexpr const char* kFormatHint = "--format safetensors holds every network";

/// Returns a number as source text that parses to exactly the same number.
std::string literal(double number);

/// Source text of Python.
struct PythonClasses {
  std::string text;     ///< Classes of torch.nn modules, each behind those that it uses.
  std::string network;  ///< Name of the network's class.
};

/// Returns the classes of a network that was made in Python's dialect. Modules of equal text share
/// a class. Buffers whose names `is_stored` denies are no part of the state dict.
PythonClasses python_classes(const Module& network,
                             const std::function<bool(const std::string& name)>& is_stored);

}  // namespace moesaic::script
