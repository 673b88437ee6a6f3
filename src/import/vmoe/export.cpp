// SPDX-License-Identifier: Apache-2.0
#include "export.h"

#include <ATen/ATen.h>

#include "arrays.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

int64_t pruned_experts(const VMoE& model) {
  int64_t count = 0;
  for (const auto& [block, layer, unused] : model.moe_blocks()) {
    const auto& options = layer->options();
    if (layer->stand_in.defined()) {
      fail_usage(
          "export: in block {} the pruned experts left mean outputs, for which a V-MoE checkpoint "
          "has no place; safetensors does",
          block);
    }
    const int64_t gone = options.experts - static_cast<int64_t>(layer->kept().size());
    if (gone > 0 && nn::pruned_selection(options.rule) == PrunedSelection::reroute) {
      fail_usage(
          "export: in block {} the tokens of {} pruned experts reroute to the others, which "
          "a V-MoE checkpoint cannot say; safetensors can",
          block, gone);
    }
    count += gone;
  }
  return count;
}

}  // namespace

void check_new_vmoe_prefix(const fs::path& prefix, std::string_view what) {
  check_new_file(prefix.string() + ".index", what);
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  for (const auto& item : fs::directory_iterator(folder)) {
    if (prefix_of_part(item.path().filename()) == prefix.filename().string()) {
      fail_usage("{}: '{}' is there already; name a new prefix", what, item.path().string());
    }
  }
}

void export_vmoe(const Model& model, const fs::path& prefix,
                 const vmoe_checkpoint::WriteOptions& options,
                 const std::map<std::string, std::string>& array_dtypes) {
  check_new_vmoe_prefix(prefix, "export");
  const auto* vmoe = dynamic_cast<const VMoE*>(&model);
  if (vmoe == nullptr) fail_usage("export: format 'vmoe' is for networks of the V-MoE family");
  const int64_t gone = pruned_experts(*vmoe);
  if (gone > 0) {
    log_warning("export: {} written as zeros: pruned before", count_text(gone, "expert"));
  }
  const auto config = parse<VMoEConfig>(Value::from_json(model.config(), "model"), "model");
  const VMoEArrays arrays = arrays_of_network(config, state_of(model), "export");
  std::vector<vmoe_checkpoint::Entry> entries = arrays.entries;
  const auto count = static_cast<int64_t>(entries.size());
  if (options.shards > count) {
    fail_usage("export: {} shards for {} would leave some empty; choose 1 to {}", options.shards,
               count_text(count, "array"), count);
  }
  for (vmoe_checkpoint::Entry& entry : entries) {
    const auto stored = array_dtypes.find(entry.name);
    if (stored != array_dtypes.end()) entry.dtype = stored->second;
    const auto type = scalar_type_of(entry.dtype);
    if (!type || !at::isFloatingType(*type)) {
      fail("export: '{}' cannot be written as {}", entry.name, entry.dtype);
    }
  }
  at::Tensor current;
  const auto source = [&](const vmoe_checkpoint::Entry& entry) {
    current = arrays.read(entry).to(*scalar_type_of(entry.dtype));
    return std::span(static_cast<const std::byte*>(current.const_data_ptr()), current.nbytes());
  };
  vmoe_checkpoint::write(prefix, std::move(entries), source, options);
}

}  // namespace moesaic
