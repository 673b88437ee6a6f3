// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace moesaic {

/// Returns the number of bytes of freed outputs and gradients of at least 2 MB that the CPU
/// operators cache for their next call.
size_t cached_memory_bytes();
/// Limits this process' cache where so many processes share the machine: to a quarter of the
/// memory, divided by their number.
void limit_cached_memory(int64_t processes);
/// Frees these cached bytes.
void free_cached_memory();

namespace ops {

/// Returns an uninitialised tensor. Outputs and gradients of all experts' weights are new memory at
/// each step, and with the C library's defaults their page faults take longer than the arithmetic.
/// So large tensors reuse cached blocks, which hold at most a quarter of the memory and are freed
/// when calls stop using them.
at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace ops

}  // namespace moesaic
