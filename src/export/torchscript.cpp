// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/torchscript.h"

#include <sstream>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "script_vmoe.h"

namespace moesaic {

torch::jit::Module to_torchscript(const Model& model) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  if (const auto* vmoe = dynamic_cast<const VMoE*>(&model)) return script::make_vmoe(unit, *vmoe);
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
