// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/safetensors.h"

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfig = "config.json";

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

Document config_in(const fs::path& weights) {
  const safetensors::File file(weights);
  const auto config = file.metadata().find("config");
  if (config == file.metadata().end()) {
    fail("{}: its metadata has no model configuration under 'config'", weights.string());
  }
  return Document::from_text(config->second, weights.string() + " (config)");
}

}  // namespace

void export_safetensors(const Model& model, const fs::path& out, const ExportInfo& info) {
  if (out.extension() == ".safetensors") {
    write_file(model, out, info);
  } else {
    write_folder(model, out, info);
  }
}

std::shared_ptr<Model> load_exported(const fs::path& path) {
  const bool folder = fs::is_directory(path);
  const fs::path weights = folder ? path / kWeightsFile : path;
  const Document config = folder ? stored_document(path / kConfig) : config_in(path);
  return model_of(config.root(), read_tensors(weights), weights.string());
}

}  // namespace moesaic
