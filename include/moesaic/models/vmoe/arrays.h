// SPDX-License-Identifier: Apache-2.0
// Parameters of a V-MoE in the names and layouts of the reference, float32. They come from a
// network of this library or from checkpoint files of the reference (checkpoint/vmoe/arrays.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/formats/vmoe_checkpoint.h"
#include "moesaic/models/vmoe/names.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

class VMoEArrays {
 public:
  virtual ~VMoEArrays() = default;

  virtual const std::vector<vmoe_checkpoint::Entry>& entries() const = 0;
  /// Returns the array, float32 and contiguous. Throws Error (failure) for non-finite values.
  virtual at::Tensor read(const vmoe_checkpoint::Entry& entry) const = 0;
  /// Returns the name of the source for messages.
  virtual std::string from() const = 0;

  /// Returns the entry of this name, or nullptr.
  const vmoe_checkpoint::Entry* find(std::string_view name) const;
};

/// Arrays of a network's tensors, whose memory they share. Experts that pruning removed become rows
/// of zeros, which give a token routed to them nothing as well.
class VMoEStateArrays : public VMoEArrays {
 public:
  VMoEStateArrays(const VMoEConfig& config, TensorMap state, std::string from);

  const std::vector<vmoe_checkpoint::Entry>& entries() const override { return entries_; }
  at::Tensor read(const vmoe_checkpoint::Entry& entry) const override;
  std::string from() const override { return from_; }

 private:
  struct Place {
    size_t tensor = 0, array = 0;
  };
  at::Tensor whole(const VMoETensor& tensor) const;

  VMoEConfig config_;
  TensorMap state_;
  std::string from_;
  std::vector<VMoETensor> tensors_;
  std::vector<vmoe_checkpoint::Entry> entries_;
  std::map<std::string, Place> places_;
};

}  // namespace moesaic
