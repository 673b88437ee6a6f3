// SPDX-License-Identifier: Apache-2.0
// A V-MoE's parameters as the reference has them: its names, its layouts, float32. They come from
// a network here, or from its checkpoint files (checkpoint/vmoe/arrays.h).
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
  /// The array as float32, contiguous. Throws Error(failure) for values that are not finite.
  virtual at::Tensor read(const vmoe_checkpoint::Entry& entry) const = 0;
  /// What messages call them.
  virtual std::string from() const = 0;

  /// nullptr when there is none of that name.
  const vmoe_checkpoint::Entry* find(std::string_view name) const;
};

/// Those of a network's tensors, whose memory they share. Experts that pruning removed are arrays'
/// rows of zeros: routed to them, a token gets nothing either.
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
