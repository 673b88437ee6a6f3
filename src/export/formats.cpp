// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/export/safetensors.h"
#include "moesaic/export/torchscript.h"

namespace moesaic {
namespace {

/// Says what a reader of the exported network has to know of batches.
void warn_of_batches(const Model& model) {
  const std::string why = batch_dependence(model);
  if (why.empty()) return;
  const bool capacity = !model.setting_paths().evaluation_capacity_factor.empty();
  log_warning("export: an image's result depends on the others of its batch, since {}{}", why,
              capacity ? "; --without-capacity exports a network that drops no token" : "");
}

ExportFormat safetensors_format() {
  return {.meaning = "the form that lasts",
          .out = "a new folder, or a new file that ends in .safetensors",
          .check_out =
              [](const std::filesystem::path& out) {
                if (out.extension() == ".safetensors") {
                  check_new_file(out, "--out");
                } else {
                  check_new_folder(out, "--out");
                }
              },
          .write =
              [](const Model& model, const ExportInfo& info, const ExportOptions& options) {
                warn_of_batches(model);
                export_safetensors(model, options.out, info);
              }};
}

ExportFormat torchscript_format() {
  return {.meaning = "one file that PyTorch and LibTorch run as it is",
          .out = "a new file",
          .check_out = [](const std::filesystem::path& out) { check_new_file(out, "--out"); },
          .write =
              [](const Model& model, const ExportInfo& info, const ExportOptions& options) {
                warn_of_batches(model);
                export_torchscript(model, options.out, info);
              }};
}

}  // namespace

Registry<ExportFormat>& export_formats() {
  static Registry<ExportFormat> list(
      "format", {{"safetensors", safetensors_format()}, {"torchscript", torchscript_format()}});
  return list;
}

}  // namespace moesaic
