// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/torchscript.h"

#include <torch/csrc/jit/serialization/export.h>

#include <optional>
#include <span>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/export/safetensors.h"

namespace moesaic {
namespace {

/// The name among the extra files of safetensors::kInArchive.
constexpr const char* kTensors = "model.safetensors";

}  // namespace

torch::jit::Module to_torchscript(const Model& model) {
  if (std::optional<torch::jit::Module> module = model.torchscript()) return *std::move(module);
  fail_usage("export: models of the family '{}' have no TorchScript form; choose safetensors",
             model.config().value("name", std::string()));
}

void export_torchscript(const Model& model, const std::filesystem::path& file,
                        const ExportInfo& info) {
  torch::jit::ExtraFilesMap extra;
  for (const auto& [name, text] : side_files(model, info)) extra[name] = text;
  AtomicFile out(file);  // Throws where there is no folder, which StagedDirectory would make.
  {
    const StagedDirectory beside(file);  // It is never committed, so that it goes away.
    const std::filesystem::path tensors = beside.path() / kTensors;
    export_safetensors(model, tensors, info);
    extra[kTensors] = read_text(tensors);
  }
  const auto write = [&](const void* bytes, size_t count) {
    out.write(std::span(static_cast<const std::byte*>(bytes), count));
    return count;
  };
  torch::jit::ExportModule(to_torchscript(model), write, extra);
  out.commit();
}

}  // namespace moesaic
