// SPDX-License-Identifier: Apache-2.0
// Texts as embeddings, with a label and a language each: the data of tables 10 and 11 of "Towards
// Understanding Mixture of Experts", made by tools/python/make_embeddings.py. A safetensors file
// has `embeddings` [N, d], `label` [N] and `language` [N], and in its metadata `classes` and
// `languages`, their names as a JSON list.
#include <torch/torch.h>

#include <algorithm>

#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"

namespace moesaic {
namespace {

struct EmbeddingsConfig : SplitFiles {
  int64_t width = 0;
};
void describe(auto& f, EmbeddingsConfig& c) {
  describe(f, static_cast<SplitFiles&>(c));
  f("width", c.width, "required size of an embedding; 0: any", between(0, 1048576));
}
ConfigProblem config_problem(const EmbeddingsConfig& config) {
  return split_files_problem(config);
}

struct EmbeddingsSettings {
  int64_t num_classes = 0;
  std::optional<EmbeddingsConfig> embeddings;
};
void describe(auto& f, EmbeddingsSettings& c) {
  f("num_classes", c.num_classes, "required number of classes; 0: any", at_least(0),
    renamed_from("class_count"));
  f("embeddings", c.embeddings, "files of texts already embedded; null: only with base");
}

const EmbeddingsSettings& embeddings_settings(const DatasetSpec& spec) {
  return spec.format.as<EmbeddingsSettings>();
}

const EmbeddingsConfig& config_of(const DatasetSpec& spec) {
  return *embeddings_settings(spec).embeddings;
}

/// Returns the list of names that the metadata of a file stores as JSON.
std::vector<std::string> names_in(const safetensors::File& file, const fs::path& path,
                                  const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) fail("{}: its metadata has no '{}'", path.string(), key);
  const Json json = find_json(found->second, kMaxListBytes).value_or(nullptr);
  const auto is_name = [](const Json& one) {
    return one.is_string() && !one.get_ref<const std::string&>().empty();
  };
  if (json.is_array() && !json.empty() && std::all_of(json.begin(), json.end(), is_name)) {
    auto names = json.get<std::vector<std::string>>();
    if (std::set(names.begin(), names.end()).size() == names.size()) return names;
  }
  fail("{}: '{}' of its metadata must be a JSON list of different names, e.g. [\"a\", \"b\"]",
       path.string(), key);
}

/// Returns the numbers [count] int64, each an index into `names`.
at::Tensor numbers_in(const safetensors::File& file, const std::string& path,
                      const std::string& name, int64_t count,
                      const std::vector<std::string>& names) {
  const at::Tensor numbers = read_tensor(file, path, name, 1, Numbers::integer).to(at::kLong);
  if (numbers.size(0) != count) {
    fail("{}: tensor '{}' has {} numbers for {} embeddings", path, name, numbers.size(0), count);
  }
  const int64_t known = std::ssize(names);
  const auto* value = numbers.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (value[i] >= 0 && value[i] < known) continue;
    fail("{}: tensor '{}' must be between 0 and {}, found {} in row {}", path, name, known - 1,
         value[i], i);
  }
  return numbers;
}

/// Checks that equal numbers have equal names in both files.
void check_same_names(const fs::path& one, const fs::path& other) {
  const safetensors::File first(one), second(other);
  for (const char* key : {"classes", "languages"}) {
    if (names_in(first, one, key) != names_in(second, other, key)) {
      fail("{} and {} have different '{}' in their metadata", one.string(), other.string(), key);
    }
  }
}

ConfigProblem check_embeddings(const DatasetSpec& spec) {
  const bool given = embeddings_settings(spec).embeddings.has_value();
  return first_problem({ConfigProblem(given ? "" : "format embeddings needs 'embeddings'"),
                        no_images_problem(spec), unknown_split(spec.num_images, "num_images")});
}

/// Opens embeddings as images of one channel and one row; the language is the group.
std::shared_ptr<const Dataset> open_embeddings(const DatasetSpec& spec, DatasetInfo info,
                                               const fs::path& folder) {
  const EmbeddingsConfig& config = config_of(spec);
  const fs::path path = folder / config.file_of(info.split);
  if (config.file.empty()) {
    const fs::path other = folder / config.file_of(info.split == "train" ? "test" : "train");
    if (fs::exists(other)) check_same_names(path, other);
  }
  const safetensors::File file(path);
  info.classes = names_in(file, path, "classes");
  info.groups = names_in(file, path, "languages");
  const at::Tensor x_Nd =
      read_tensor(file, path, "embeddings", 2, Numbers::floating).to(at::kFloat);
  check_finite_rows(x_Nd, path, "embeddings");
  const int64_t count = x_Nd.size(0), width = x_Nd.size(1);
  DatasetInputs texts{x_Nd.view({count, 1, 1, width}),
                      numbers_in(file, path, "label", count, info.classes),
                      numbers_in(file, path, "language", count, info.groups)};
  if (config.width > 0 && width != config.width) {
    fail("{}: tensor 'embeddings' has rows of {}, the description says {}", path.string(), width,
         config.width);
  }
  keep_split(texts, {config, "embeddings.split", "text"}, info.split, path);
  const int64_t classes = std::ssize(info.classes),
                expected = embeddings_settings(spec).num_classes;
  if (expected > 0 && classes != expected) {
    fail("{}: {} classes in its metadata, dataset '{}' has {}", path.string(), classes, spec.name,
         expected);
  }
  return make_input_dataset(std::move(info), std::move(texts));
}

void fill_embeddings_info(const DatasetSpec& spec, DatasetInfo& info) {
  count_classes(info, embeddings_settings(spec).num_classes);
  fill_rows_info(info, config_of(spec).width);
}

}  // namespace

DatasetFormat embeddings_format() {
  return {
      .settings = NamedSettings("embeddings", EmbeddingsSettings{}),
      .description = "vectors with labels in a safetensors file, such as embedded texts",
      .has_images = false,
      .check = check_embeddings,
      .open = open_embeddings,
      .required_paths =
          [](const DatasetSpec& spec, const std::string& split) {
            return std::vector<RequiredPath>{{config_of(spec).file_of(split), /*is_folder=*/false}};
          },
      .fill_info = fill_embeddings_info};
}

}  // namespace moesaic
