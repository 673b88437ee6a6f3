// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/safetensors.h"

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/tensors.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

constexpr const char* kWeightsFile = "model.safetensors";

/// Readers in other languages ask which framework's tensors these are.
Metadata format_mark() {
  return {{"format", "pt"}};
}

void write_folder(const Model& model, const fs::path& out, const ExportInfo& info) {
  check_new_folder(out, "export");
  StagedDirectory staged(out);
  write_tensors(staged.path() / kWeightsFile, state_of(model), format_mark());
  for (const auto& [name, text] : side_files(model, info)) {
    write_atomic(staged.path() / name, std::string_view(text));
  }
  staged.commit();
}

void write_file(const Model& model, const fs::path& out, const ExportInfo& info) {
  check_new_file(out, "export");
  Metadata metadata = format_mark();
  for (const auto& [name, text] : side_files(model, info)) {
    metadata[fs::path(name).stem().string()] = text;
  }
  write_tensors(out, state_of(model), metadata);
}

}  // namespace

void export_safetensors(const Model& model, const fs::path& out, const ExportInfo& info) {
  if (out.extension() == ".safetensors") {
    write_file(model, out, info);
  } else {
    write_folder(model, out, info);
  }
}

}  // namespace moesaic
