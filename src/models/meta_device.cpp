// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/meta_device.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

namespace moesaic {
namespace {

/// Calls the operator with the meta device in place of the given or the default one. An operator
/// with a tensor argument keeps that tensor's device.
void make_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard beneath(c10::DispatchKey::DeferredInit);
  const auto& arguments = op.schema().arguments();
  bool has_source = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    has_source |= value.isTensor() && value.toTensor().defined();
  }
  for (size_t i = 0; !has_source && i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    torch::jit::peek(*stack, i, arguments.size()) = c10::Device(c10::kMeta);
  }
  op.callBoxed(stack);
}

using Optional = const std::optional<at::Tensor>&;

/// Returns the result of a convolution on the meta device, for which LibTorch has no kernel.
at::Tensor convolution_shape(const at::Tensor& input, const at::Tensor& weight, Optional,
                             at::IntArrayRef stride, at::IntArrayRef padding,
                             at::IntArrayRef dilation, bool transposed, at::IntArrayRef, int64_t) {
  TORCH_CHECK(!transposed, "transposed convolutions have no shape function here");
  std::vector<int64_t> shape = {input.size(0), weight.size(0)};
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    const int64_t reach = dilation[i] * (weight.size(axis) - 1) + 1;
    shape.push_back((input.size(axis) + 2 * padding[i] - reach) / stride[i] + 1);
  }
  return at::empty(shape, input.options());
}

at::Tensor index_select_shape(const at::Tensor& input, int64_t axis, const at::Tensor& index) {
  std::vector<int64_t> shape = input.sizes().vec();
  shape.at(static_cast<size_t>(at::maybe_wrap_dim(axis, input.dim()))) = index.size(0);
  return at::empty(shape, input.options());
}

/// Of output, mean and reciprocal deviation.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_shape(const at::Tensor& input,
                                                                at::IntArrayRef normalized,
                                                                Optional, Optional, double) {
  std::vector<int64_t> shape = input.sizes().vec();
  std::fill(shape.end() - static_cast<int64_t>(normalized.size()), shape.end(), 1);
  return {at::empty_like(input), at::empty(shape, input.options()),
          at::empty(shape, input.options())};
}

/// Of output, mean and reciprocal deviation, which only training needs.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm_shape(const at::Tensor& input, Optional,
                                                                Optional, Optional, Optional,
                                                                bool training, double, double) {
  const at::Tensor statistics = at::empty({training ? input.size(1) : 0}, input.options());
  return {at::empty_like(input), statistics, at::empty_like(statistics)};
}

/// Of output and logarithms of sums, [B, H, T, c] and [B, H, T].
std::tuple<at::Tensor, at::Tensor> attention_shape(const at::Tensor& query, const at::Tensor&,
                                                   const at::Tensor&, double, bool, Optional,
                                                   std::optional<double>) {
  const at::Tensor output = at::empty_like(query.transpose(1, 2), at::MemoryFormat::Contiguous);
  return {output.transpose(1, 2), at::empty(query.sizes().slice(0, 3), query.options())};
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor gradient_of(bool wanted, Optional tensor) {
  return wanted && tensor && tensor->defined() ? at::empty_like(*tensor) : at::Tensor();
}

Gradients attention_gradients(const at::Tensor&, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const at::Tensor&, const at::Tensor&, double,
                              bool, Optional, std::optional<double>) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

/// Of input, weight and bias, for the mask's members.
Gradients layer_norm_gradients(const at::Tensor&, const at::Tensor& input, at::IntArrayRef,
                               const at::Tensor&, const at::Tensor&, Optional weight, Optional bias,
                               std::array<bool, 3> mask) {
  return {gradient_of(mask[0], input), gradient_of(mask[1], weight), gradient_of(mask[2], bias)};
}

Gradients batch_norm_gradients(const at::Tensor&, const at::Tensor& input, Optional weight,
                               Optional, Optional, Optional, Optional, bool, double,
                               std::array<bool, 3> mask) {
  return {gradient_of(mask[0], input), gradient_of(mask[1], weight), gradient_of(mask[2], weight)};
}

/// Makes what oneDNN makes on the way, too, so that it is seen: input, gradient and result in its
/// own layout.
Gradients convolution_gradients(const at::Tensor& gradient, const at::Tensor& input,
                                const at::Tensor& weight, at::OptionalIntArrayRef, at::IntArrayRef,
                                at::IntArrayRef, at::IntArrayRef, bool, at::IntArrayRef, int64_t,
                                std::array<bool, 3> mask) {
  const std::array copies = {at::empty_like(input), at::empty_like(gradient),
                             gradient_of(mask[0], input)};
  return {gradient_of(mask[0], input), gradient_of(mask[1], weight),
          mask[2] ? at::empty({gradient.size(1)}, gradient.options()) : at::Tensor()};
}

using Library = std::unique_ptr<torch::Library>;

Library register_shapes() {
  auto shapes = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                 c10::DispatchKey::Meta, __FILE__, __LINE__);
  shapes->impl("_scaled_dot_product_flash_attention_for_cpu", attention_shape);
  shapes->impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_gradients);
  shapes->impl("native_layer_norm", layer_norm_shape);
  shapes->impl("native_batch_norm", batch_norm_shape);
  shapes->impl("index_select", index_select_shape);
  shapes->impl("convolution_overrideable", convolution_shape);
  shapes->impl("native_layer_norm_backward", layer_norm_gradients);
  shapes->impl("native_batch_norm_backward", batch_norm_gradients);
  shapes->impl("convolution_backward", convolution_gradients);
  return shapes;
}

/// The key exists for libraries that build modules without their memory.
Library register_fallback() {
  auto fallback = std::make_unique<torch::Library>(
      torch::Library::IMPL, "_", c10::DispatchKey::DeferredInit, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&make_on_meta>());
  return fallback;
}

/// Returns a share of a registration that exists, for all threads, while one of its shares does.
template <Library (*make)()>
std::shared_ptr<void> share_of() {
  static std::mutex mutex;
  static Library library;
  static int64_t users = 0;
  const std::lock_guard lock(mutex);
  if (users == 0) library = make();
  ++users;
  return {&users, [](void*) {
            const std::lock_guard lock(mutex);
            if (--users == 0) library.reset();
          }};
}

}  // namespace

MetaKernels::MetaKernels() : registered_(share_of<register_shapes>()) {}

MetaDeviceGuard::MetaDeviceGuard()
    : fallback_(share_of<register_fallback>()), guard_(c10::DispatchKey::DeferredInit) {}

}  // namespace moesaic
