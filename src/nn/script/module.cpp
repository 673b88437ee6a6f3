// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include "python.h"

namespace moesaic::script {
namespace {

/// Returns the name of a module's C++ class: Attention of moesaic::nn::AttentionImpl, BatchNorm2d
/// of torch::nn::BatchNormImplBase<2, torch::nn::BatchNorm2dImpl>.
std::string kind_of(const torch::nn::Module& module) {
  std::string kind = module.name();
  kind.erase(0, kind.rfind(':') + 1);
  std::erase(kind, '>');
  return kind.ends_with("Impl") ? kind.substr(0, kind.size() - 4) : kind;
}

/// Makes the tree of a module around its own tensors, without methods.
Module make_tree(const Context& context, const torch::nn::Module& from) {
  Children children;
  for (const auto& child : from.named_children()) {
    children.emplace_back(child.key(), make_tree(context, *child.value()));
  }
  return make_module(context, kind_of(from), from, children, "", Copy::no);
}

void copy_tensors(Module& module) {
  for (const auto& item : module.named_attributes(/*recurse=*/false)) {
    if (item.value.isTensor()) module.setattr(item.name, item.value.toTensor().detach().clone());
  }
  for (Module child : module.children()) copy_tensors(child);
}

constexpr char kLinear[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.linear(x, self.weight, self.bias)
)";

constexpr char kBatchNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, False,
                            0.0, {eps}, False)
)";

constexpr char kLayerNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [{width}], self.weight, self.bias, {eps})
)";

constexpr char kMoEBlock[] = R"(
def forward(self, x: Tensor) -> Tensor:
    mixed = x + self.attention.forward(self.norm1.forward(x)){scale1}
    tokens = self.norm2.forward(mixed){to_member_order}
    return mixed + self.moe.forward(tokens, tokens){from_member_order}{scale2}
)";

// The tokens of an image's members are in turn, see nn::to_member_order().
constexpr char kToMemberOrder[] = ".unflatten(0, [-1, {0}]).transpose(1, 2).flatten(0, 2)";
constexpr char kFromMemberOrder[] =
    ".view([-1, mixed.size(1), {0}, mixed.size(2)]).transpose(1, 2).reshape(mixed.size())";

}  // namespace

Module make_module(const Context& context, const std::string& kind, const torch::nn::Module& from,
                   const Children& children, const std::string& source, Copy copy) {
  Module module(c10::QualifiedName("__torch__.moesaic." + kind), context.compilation_unit,
                /*shouldMangle=*/true);
  // Stock PyTorch expects every module to say whether it trains.
  module.register_attribute("training", c10::BoolType::get(), false);
  const auto add = [&](const auto& item, bool is_buffer) {
    const at::Tensor& value = item.value();
    module.register_parameter(item.key(), copy == Copy::yes ? value.detach().clone() : value,
                              is_buffer);
  };
  for (const auto& parameter : from.named_parameters(/*recurse=*/false)) add(parameter, false);
  for (const auto& buffer : from.named_buffers(/*recurse=*/false)) add(buffer, true);
  for (const auto& [name, child] : children) module.register_module(name, child);
  if (source.empty()) return module;
  context.dialect == Dialect::python ? keep_python(module, source) : module.define(source);
  return module;
}

Module make_traced(const Context& context, torch::nn::Module& from,
                   const std::function<at::Tensor(const at::Tensor&)>& forward,
                   const std::vector<int64_t>& shape) {
  using torch::jit::Stack;
  Module module = make_tree(context, from);
  std::vector<int64_t> batch = {2};
  batch.insert(batch.end(), shape.begin(), shape.end());
  const torch::NoGradGuard no_grad;
  const bool trains = from.is_training();
  from.eval();
  const auto [state, outputs] = torch::jit::tracer::trace(
      {at::zeros(batch, from.parameters().front().options())},
      [&](const Stack& images) { return Stack{forward(images.at(0).toTensor())}; },
      [](const at::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/false,
      &module);
  from.train(trains);
  torch::jit::Function* const recorded = context.compilation_unit->create_function(
      c10::QualifiedName(*module.type()->name(), "forward"), state->graph);
  context.dialect == Dialect::python ? keep_python(module, python_of(*recorded))
                                     : module.type()->addMethod(recorded);
  copy_tensors(module);  // Recording finds parameters by identity.
  return module;
}

std::string input_check_source(const std::vector<int64_t>& shape) {
  return fmt::format(R"(
def forward(self, images: Tensor) -> Tensor:
    size = images.size()
    fits = images.dim() == 4 and size[1:] == [{0}]
    assert fits, "images must have the shape [batch, {0}], found {{}}".format(size)
)",
                     fmt::join(shape, ", "));
}

std::string literal(double number) {
  const std::string text = fmt::format("{}", number);
  const bool is_float = text.find_first_of(".e") != std::string::npos;
  return is_float ? text : text + ".0";
}

// Layers of a transformer. Those without experts are recorded.

Module make_linear(const Context& context, const torch::nn::LinearImpl& from) {
  return make_module(context, "Linear", from, {}, kLinear);
}

Module make_batch_norm(const Context& context, const torch::nn::BatchNorm1dImpl& from) {
  return make_module(context, "BatchNorm", from, {},
                     fmt::format(kBatchNorm, fmt::arg("eps", literal(from.options.eps()))));
}

Module make_layer_norm(const Context& context, const torch::nn::LayerNormImpl& from) {
  return make_module(
      context, "LayerNorm", from, {},
      fmt::format(kLayerNorm, fmt::arg("width", from.options.normalized_shape().at(0)),
                  fmt::arg("eps", literal(from.options.eps()))));
}

Module make_map_head(const Context& context, nn::MapHeadImpl& from) {
  const auto forward = [&](const at::Tensor& x) { return from.forward(x); };
  return make_traced(context, from, forward, {1, from.probe.size(2)});
}

Module make_encoder_block(const Context& context, nn::EncoderBlockImpl& from) {
  const int64_t width = from.norm1->weight.size(0);
  if (from.moe.is_empty()) {
    const auto forward = [&](const at::Tensor& x) { return from.forward(x).x_BTd; };
    return make_traced(context, from, forward, {1, width});
  }
  const auto attend = [&](const at::Tensor& x) { return from.attention->forward(x); };
  const int64_t members = from.moe->options().num_members;
  return make_module(
      context, "MoEEncoderBlock", from,
      {{"norm1", make_layer_norm(context, *from.norm1)},
       {"attention", make_traced(context, *from.attention, attend, {1, width})},
       {"norm2", make_layer_norm(context, *from.norm2)},
       {"moe", make_moe_layer(context, *from.moe, {})}},
      fmt::format(kMoEBlock, fmt::arg("scale1", from.scale1.defined() ? " * self.scale1" : ""),
                  fmt::arg("scale2", from.scale2.defined() ? " * self.scale2" : ""),
                  fmt::arg("to_member_order",
                           members > 1 ? fmt::format(kToMemberOrder, members) : ".flatten(0, 1)"),
                  fmt::arg("from_member_order", members > 1 ? fmt::format(kFromMemberOrder, members)
                                                            : ".view_as(mixed)")));
}

}  // namespace moesaic::script
