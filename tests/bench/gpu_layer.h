// SPDX-License-Identifier: Apache-2.0
// What the benchmarks on a GPU share: bfloat16, a V-MoE B/16 layer: 768 wide, 3072 between, 8
// experts, top-2, 1024 images of 65 tokens. Times are the host's, from an idle GPU to an idle GPU;
// short work is repeated in between. MOESAIC_CUDA_OFF=grouped_mm gives every expert
// a product of its own.
#pragma once

#include <functional>
#include <string>

#include "bench.h"
#include "eager_moe.h"

namespace moesaic::bench {

constexpr int64_t kGpuTokens = 66'560, kGpuWidth = 768, kGpuHidden = 3072;

/// `calls` of the work, and then the GPU idle.
std::function<void()> until_done(const std::function<void()>& work, int calls = 1);
/// Of work that is short: many calls between two waits.
Times short_times(const std::function<void()>& ours, const std::function<void()>& peer);

EagerLayer gpu_layer(int64_t experts, int64_t k, bool learns = false);
at::Tensor gpu_tokens(int64_t tokens, bool learns = false);

/// Router, choice and experts of this software; of the experts only `kept`, unless empty.
at::Tensor route_and_compute(const EagerLayer& layer, const at::Tensor& x_Td,
                             const std::vector<int64_t>& kept = {});
at::Tensor gpu_ours(const EagerLayer& layer, const at::Tensor& x_Td);

/// As one would write it around LibTorch's grouped GEMM: sort, gather, product, bias, GELU,
/// product, bias, add up.
at::Tensor composed_layer(const EagerLayer& layer, const at::Tensor& x_Td);

/// One dense MLP with bias and GELU in the product's own epilogue.
at::Tensor fused_dense(const EagerLayer& layer, const at::Tensor& rows_Ad);

using GpuLayer = std::function<at::Tensor(const EagerLayer&, const at::Tensor&)>;
std::function<void()> gpu_forward(const GpuLayer& f, const EagerLayer& layer, const at::Tensor& x);
/// Forward and backward, gradients of parameters and of x.
std::function<void()> gpu_train(const GpuLayer& f, const EagerLayer& layer, const at::Tensor& x);

/// Few tokens, where launching takes longer than computing.
void gpu_small_batch(const Report& report);
/// What a training step holds.
void gpu_memory(const Report& report);

}  // namespace moesaic::bench
