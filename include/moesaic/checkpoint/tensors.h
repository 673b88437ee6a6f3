// SPDX-License-Identifier: Apache-2.0
// Reads and writes named tensors as safetensors files. Where a path is read, it may also be that of
// an index of several files (NAME.safetensors.index.json), see checkpoint/save.h.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

/// Throws Error (usage) for a file of another kind: one that is called like a file of tensors is
/// not refused, since it is damaged if it is none. `others` names what else is read in its place.
void check_tensor_file(const fs::path& path, const std::string& others = {});

/// Returns all tensors of a safetensors file as contiguous CPU tensors that own their memory.
/// Dtypes: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL. Throws Error (failure) for other dtypes and for
/// whatever formats/safetensors.h rejects.
TensorMap read_tensors(const fs::path& path);

/// Returns the tensors of a network as read_tensors() does, but for F16 and BF16, which become
/// float32. With `mmap` the others are in the file's memory, which is read as it is used: they
/// must not be written, and the file must stay as it is. A tensor that lies in several slices is
/// copied.
TensorMap read_weights(const fs::path& path, bool mmap);

/// Returns a hash of all bytes of tensors, in hexadecimal. Sums would depend on the number of
/// threads.
std::string hash_of(const TensorMap& tensors);

/// Writes a safetensors file atomically; tensors may be on any device and need not be contiguous.
/// Equal tensors give equal files. Throws Error (failure) for a dtype that read_tensors does not
/// support and for undefined or sparse tensors. `progress` is HashedFile's. With `make`, which
/// makes one tensor at a time by its name, `tensors` have the shapes and dtypes and may be on the
/// meta device.
FileContent write_tensors(const fs::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata = {},
                          std::function<void()> progress = {},
                          const std::function<at::Tensor(const std::string& name)>& make = {});

}  // namespace moesaic
