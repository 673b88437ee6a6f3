// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/embeddings.h"

#include <fmt/format.h>

#include <optional>

#include "built_in.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/data/dataset_inputs.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct EmbeddingsSettings {
  int64_t class_count = 0;
  std::optional<EmbeddingsConfig> embeddings;
};
template <class Fields>
void describe(Fields& f, EmbeddingsSettings& c) {
  f("class_count", c.class_count, "how many classes there have to be; 0: any", at_least(0));
  f("embeddings", c.embeddings, "the files of texts that are embedded already");
}

const EmbeddingsConfig& config_of(const DatasetSpec& spec) {
  return *spec.format.as<EmbeddingsSettings>().embeddings;
}

int64_t class_count_embeddings(const DatasetSpec& spec) {
  return spec.format.as<EmbeddingsSettings>().class_count;
}

ConfigProblem check_embeddings(const DatasetSpec& spec) {
  const bool given = spec.format.as<EmbeddingsSettings>().embeddings.has_value();
  return first_problem(ConfigProblem(given ? "" : "format embeddings needs 'embeddings'"),
                       no_images_problem(spec), unknown_split(spec.images, "images"));
}

std::string source_embeddings(const DatasetSpec& spec, const std::string& split) {
  return embeddings_file(config_of(spec), split);
}

/// Opens embeddings as images of one channel and one row; the language is the group.
std::shared_ptr<const Dataset> open_embeddings(const DatasetSpec& spec, DatasetInfo info,
                                               const fs::path& folder) {
  Embeddings texts = read_embeddings(config_of(spec), folder, info.split);
  const auto classes = static_cast<int64_t>(texts.classes.size());
  if (class_count_embeddings(spec) > 0 && classes != class_count_embeddings(spec)) {
    fail("{}: {} classes in its metadata, dataset '{}' has {}",
         (folder / source_embeddings(spec, info.split)).string(), classes, spec.name,
         class_count_embeddings(spec));
  }
  info.classes = std::move(texts.classes);
  info.groups = std::move(texts.languages);
  const int64_t count = texts.x_Nd.size(0);
  return make_input_dataset(std::move(info), {texts.x_Nd.view({count, 1, 1, texts.x_Nd.size(1)}),
                                              texts.label_N, texts.language_N});
}

void outline_embeddings(const DatasetSpec& spec, DatasetInfo& info) {
  info.classes_named = false;
  for (int64_t i = 0; i < class_count_embeddings(spec); ++i)
    info.classes.push_back(fmt::format("class {}", i));
  info.channels = info.height = 1;
  info.width = config_of(spec).width;
  info.mean = {0.0};
  info.std = {1.0};
}

/// Verifies the files; a single file that is split at random is read once, for the train split.
std::vector<FileVerification> verify_embeddings(const DatasetSpec& spec, const std::string& split,
                                                const fs::path& folder) {
  if (!config_of(spec).file.empty() && split == "test") return {};
  const std::string name = source_embeddings(spec, split);
  FileVerification result{name, folder / name, ""};
  try {
    read_embeddings(config_of(spec), folder, split);
  } catch (const Error& error) {
    result.problem = error.what();
  }
  return {result};
}

}  // namespace

DatasetFormat embeddings_format() {
  return {
      .settings = Choice("embeddings", EmbeddingsSettings{}),
      .meaning = "vectors with labels in a safetensors file, such as embedded texts",
      .images = false,
      .check = check_embeddings,
      .open = open_embeddings,
      .parts =
          [](const DatasetSpec& spec, const std::string& split) {
            return std::vector<DatasetPart>{{source_embeddings(spec, split), /*is_folder=*/false}};
          },
      .class_count = class_count_embeddings,
      .outline = outline_embeddings,
      .verify = verify_embeddings};
}

}  // namespace moesaic
