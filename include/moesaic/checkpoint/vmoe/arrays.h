// SPDX-License-Identifier: Apache-2.0
// Parameters of a V-MoE in checkpoint files of the reference implementation.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/formats/vmoe_checkpoint.h"
#include "moesaic/models/vmoe/arrays.h"

namespace moesaic {

/// Returns PREFIX for PREFIX, PREFIX.index and PREFIX.data-nnnnn-of-NNNNN. Throws Error (usage)
/// with the nearest name if PREFIX.index does not exist.
std::filesystem::path vmoe_prefix(const std::filesystem::path& given);

/// Parameter arrays of checkpoint files. The parameters may be the whole checkpoint or a branch of
/// a train state: "params/", "target/", ...; names are relative to the branch. Values are read and
/// converted piece by piece.
class VMoECheckpointArrays : public VMoEArrays {
 public:
  explicit VMoECheckpointArrays(const std::filesystem::path& prefix);

  const std::vector<vmoe_checkpoint::Entry>& entries() const override { return entries_; }
  at::Tensor read(const vmoe_checkpoint::Entry& entry) const override;
  std::string from() const override { return prefix_.string(); }

  /// Returns the branch of the parameters; "" if they are the whole checkpoint.
  const std::string& branch() const { return branch_; }
  /// Returns the number of arrays in other branches, e.g. the optimizer state or the step.
  size_t others() const { return reader_.entries().size() - entries_.size(); }
  const vmoe_checkpoint::Reader& reader() const { return reader_; }

 private:
  std::filesystem::path prefix_;
  vmoe_checkpoint::Reader reader_;
  std::string branch_;
  std::vector<vmoe_checkpoint::Entry> entries_;
};

}  // namespace moesaic
