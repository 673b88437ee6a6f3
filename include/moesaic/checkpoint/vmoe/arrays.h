// SPDX-License-Identifier: Apache-2.0
// A V-MoE's parameters in checkpoint files of the reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/formats/vmoe_checkpoint.h"
#include "moesaic/models/vmoe/arrays.h"

namespace moesaic {

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

}  // namespace moesaic
