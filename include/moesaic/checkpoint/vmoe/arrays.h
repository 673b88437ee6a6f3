// SPDX-License-Identifier: Apache-2.0
// A V-MoE's parameters as the reference has them: its names, its layouts, float32. They come from
// its checkpoint files or from a network.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/checkpoint/vmoe/names.h"
#include "moesaic/formats/vmoe_checkpoint.h"

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

/// PREFIX for PREFIX itself, PREFIX.index and PREFIX.data-nnnnn-of-NNNNN. Throws Error(usage), with
/// the nearest name, where there is no PREFIX.index.
std::filesystem::path vmoe_prefix(const std::filesystem::path& given);

/// Those of checkpoint files. The parameters may be all that there is, or a branch of a train
/// state: "params/", "target/", ...; names are those within the branch. Values are read and
/// converted piece by piece.
class VMoECheckpointArrays : public VMoEArrays {
 public:
  explicit VMoECheckpointArrays(const std::filesystem::path& prefix);

  const std::vector<vmoe_checkpoint::Entry>& entries() const override { return entries_; }
  at::Tensor read(const vmoe_checkpoint::Entry& entry) const override;
  std::string from() const override { return prefix_.string(); }

  /// "" where the parameters are all that there is.
  const std::string& branch() const { return branch_; }
  /// Arrays of other branches: an optimizer's state, a step.
  size_t others() const { return reader_.entries().size() - entries_.size(); }
  const vmoe_checkpoint::Reader& reader() const { return reader_; }

 private:
  std::filesystem::path prefix_;
  vmoe_checkpoint::Reader reader_;
  std::string branch_;
  std::vector<vmoe_checkpoint::Entry> entries_;
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
