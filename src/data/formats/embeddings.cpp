// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/embeddings.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <set>

#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/formats/safetensors.h"
#include "tensor_file.h"

namespace moesaic {
namespace {

/// The tensors of a file, each checked before it is read, and the names in its metadata.
class EmbeddingsFile {
 public:
  explicit EmbeddingsFile(const fs::path& path) : path_(path.string()), file_(path) {}

  /// Returns the list of names that the metadata stores as JSON.
  std::vector<std::string> names(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) fail("{}: its metadata has no '{}'", path_, key);
    const Json json = find_json(found->second, kMaxListBytes).value_or(nullptr);
    const auto is_name = [](const Json& one) {
      return one.is_string() && !one.get_ref<const std::string&>().empty();
    };
    if (json.is_array() && !json.empty() && std::all_of(json.begin(), json.end(), is_name)) {
      auto names = json.get<std::vector<std::string>>();
      if (std::set(names.begin(), names.end()).size() == names.size()) return names;
    }
    fail("{}: '{}' of its metadata must be a JSON list of different names, e.g. [\"a\", \"b\"]",
         path_, key);
  }

  /// Returns the numbers [count] int64, each an index into `names`.
  at::Tensor numbers(const std::string& name, int64_t count,
                     const std::vector<std::string>& names) const {
    const at::Tensor numbers = read_tensor(file_, path_, name, 1, integer_dtypes()).to(at::kLong);
    if (numbers.size(0) != count) {
      fail("{}: tensor '{}' has {} numbers for {} embeddings", path_, name, numbers.size(0), count);
    }
    const auto known = static_cast<int64_t>(names.size());
    const auto* value = numbers.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      if (value[i] < 0 || value[i] >= known) {
        fail("{}: tensor '{}' must be between 0 and {}, found {} in row {}", path_, name, known - 1,
             value[i], i);
      }
    }
    return numbers;
  }

  at::Tensor vectors() const {
    const at::Tensor x_Nd =
        read_tensor(file_, path_, "embeddings", 2, floating_dtypes()).to(at::kFloat);
    check_finite_rows(x_Nd, path_, "embeddings");
    return x_Nd;
  }

 private:
  std::string path_;
  safetensors::File file_;
};

/// Checks that equal numbers have equal names in both files.
void check_same_names(const fs::path& one, const fs::path& other) {
  for (const char* key : {"classes", "languages"}) {
    if (EmbeddingsFile(one).names(key) != EmbeddingsFile(other).names(key)) {
      fail("{} and {} have different '{}' in their metadata", one.string(), other.string(), key);
    }
  }
}

}  // namespace

ConfigProblem config_problem(const EmbeddingsConfig& config) {
  return split_files_problem(config);
}

Embeddings read_embeddings(const fs::path& path) {
  const EmbeddingsFile file(path);
  Embeddings read;
  read.classes = file.names("classes");
  read.languages = file.names("languages");
  read.x_Nd = file.vectors();
  read.label_N = file.numbers("label", read.x_Nd.size(0), read.classes);
  read.language_N = file.numbers("language", read.x_Nd.size(0), read.languages);
  return read;
}

Embeddings read_embeddings(const EmbeddingsConfig& config, const fs::path& folder,
                           const std::string& split) {
  const fs::path path = folder / config.file_of(split);
  if (config.file.empty()) {
    const fs::path other = folder / config.file_of(split == "train" ? "test" : "train");
    if (fs::exists(other)) check_same_names(path, other);
  }
  Embeddings all = read_embeddings(path);
  if (config.width > 0 && all.x_Nd.size(1) != config.width) {
    fail("{}: tensor 'embeddings' has rows of {}, the description says {}", path.string(),
         all.x_Nd.size(1), config.width);
  }
  if (config.file.empty()) return all;
  const at::Tensor rows =
      rows_of_split({config, "embeddings.split", "text"}, split, all.x_Nd.size(0), path);
  for (at::Tensor* tensor : {&all.x_Nd, &all.label_N, &all.language_N}) {
    *tensor = tensor->index_select(0, rows);
  }
  return all;
}

namespace {

struct EmbeddingsSettings {
  int64_t num_classes = 0;
  std::optional<EmbeddingsConfig> embeddings;
};
void describe(auto& f, EmbeddingsSettings& c) {
  f("num_classes", c.num_classes, "required number of classes; 0: any", at_least(0),
    renamed_from("class_count"));
  f("embeddings", c.embeddings, "files of texts already embedded; null: refused");
}

const EmbeddingsConfig& config_of(const DatasetSpec& spec) {
  return *spec.format.as<EmbeddingsSettings>().embeddings;
}

int64_t class_count_embeddings(const DatasetSpec& spec) {
  return spec.format.as<EmbeddingsSettings>().num_classes;
}

ConfigProblem check_embeddings(const DatasetSpec& spec) {
  const bool given = spec.format.as<EmbeddingsSettings>().embeddings.has_value();
  return first_problem({ConfigProblem(given ? "" : "format embeddings needs 'embeddings'"),
                        no_images_problem(spec), unknown_split(spec.num_images, "num_images")});
}

/// Opens embeddings as images of one channel and one row; the language is the group.
std::shared_ptr<const Dataset> open_embeddings(const DatasetSpec& spec, DatasetInfo info,
                                               const fs::path& folder) {
  Embeddings texts = read_embeddings(config_of(spec), folder, info.split);
  const auto classes = static_cast<int64_t>(texts.classes.size());
  if (class_count_embeddings(spec) > 0 && classes != class_count_embeddings(spec)) {
    fail("{}: {} classes in its metadata, dataset '{}' has {}",
         (folder / config_of(spec).file_of(info.split)).string(), classes, spec.name,
         class_count_embeddings(spec));
  }
  info.classes = std::move(texts.classes);
  info.groups = std::move(texts.languages);
  const int64_t count = texts.x_Nd.size(0);
  return make_input_dataset(std::move(info), {texts.x_Nd.view({count, 1, 1, texts.x_Nd.size(1)}),
                                              texts.label_N, texts.language_N});
}

void fill_embeddings_info(const DatasetSpec& spec, DatasetInfo& info) {
  count_classes(info, class_count_embeddings(spec));
  info.channels = info.height = 1;
  info.width = config_of(spec).width;
  info.mean = {0.0};
  info.std = {1.0};
}

/// Verifies the files; a single file that is split at random is read once, for the train split.
std::vector<FileVerification> verify_embeddings(const DatasetSpec& spec, const std::string& split,
                                                const fs::path& folder) {
  if (!config_of(spec).file.empty() && split == "test") return {};
  const std::string name = config_of(spec).file_of(split);
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
      .settings = NamedSettings("embeddings", EmbeddingsSettings{}),
      .description = "vectors with labels in a safetensors file, such as embedded texts",
      .has_images = false,
      .check = check_embeddings,
      .open = open_embeddings,
      .required_paths =
          [](const DatasetSpec& spec, const std::string& split) {
            return std::vector<RequiredPath>{{config_of(spec).file_of(split), /*is_folder=*/false}};
          },
      .fill_info = fill_embeddings_info,
      .verify = verify_embeddings};
}

}  // namespace moesaic
