// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/torchscript.h"

#include <optional>
#include <sstream>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"

namespace moesaic {

torch::jit::Module to_torchscript(const Model& model) {
  if (std::optional<torch::jit::Module> module = model.torchscript()) return *std::move(module);
  fail_usage("export: models of the family '{}' have no TorchScript form; choose safetensors",
             model.config().value("name", std::string()));
}

void export_torchscript(const Model& model, const std::filesystem::path& file,
                        const ExportInfo& info) {
  torch::jit::ExtraFilesMap extra;
  for (const auto& [name, text] : side_files(model, info)) extra[name] = text;
  std::ostringstream out;
  to_torchscript(model).save(out, extra);
  write_atomic(file, std::string_view(out.str()));
}

}  // namespace moesaic
