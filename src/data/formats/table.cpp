// SPDX-License-Identifier: Apache-2.0
// Tables of numbers, a row per example: CSV files, or tensors of a safetensors file whose first
// dimension is the rows. Columns or tensors are inputs, real-valued targets, or the class.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/csv.h"

namespace moesaic {
namespace {

struct TableConfig : SplitFiles {
  bool has_header = true;
  std::vector<std::string> inputs, targets;
  std::string label;
  int64_t width = 0;
};
void describe(auto& f, TableConfig& c) {
  describe(f, static_cast<SplitFiles&>(c));
  f("has_header", c.has_header,
    "names of columns in the first row of a CSV file; false: columns are named 1, 2, ...");
  f("inputs", c.inputs,
    "columns or tensors of one or two dimensions that are the inputs, in this order; empty: all "
    "others");
  f("targets", c.targets, "columns or tensors that are real-valued targets; empty: none");
  f("label", c.label,
    "column of the names of classes, or one-dimensional integer tensor of their indices (from 0), "
    "instead of targets; empty: none");
  f("width", c.width, "required number of inputs of a row; 0: any", between(0, 1048576));
}
ConfigProblem config_problem(const TableConfig& config) {
  if (config.targets.empty() == config.label.empty()) {
    return {R"(either 'targets' or 'label' must be given, e.g. "targets": ["price"], or )"
            R"("label": "kind" and beside the table "classes": ["cat", "dog"])",
            {"targets", "label"}};
  }
  std::set<std::string> used;
  for (const auto* names : {&config.inputs, &config.targets}) {
    for (const std::string& name : *names) {
      if (used.insert(name).second && name != config.label) continue;
      return {fmt::format("'{}' is named twice", name), {"inputs", "targets", "label"}};
    }
  }
  return split_files_problem(config);
}

struct TableSettings {
  std::optional<TableConfig> table;
};
void describe(auto& f, TableSettings& c) {
  f("table", c.table,
    "files of numbers, CSV (also compressed by gzip) or .safetensors, and what their columns are; "
    "null: only with base");
}

const TableConfig& table_of(const DatasetSpec& spec) {
  return *spec.format.as<TableSettings>().table;
}

/// Indices of a table's columns or tensors by their use.
struct TableColumns {
  std::vector<size_t> inputs, targets;
  std::optional<size_t> label;
};

TableColumns table_columns(const TableConfig& config, const std::vector<std::string>& names,
                           const std::string& path) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < names.size(); ++i) {
    if (places.emplace(names[i], i).second) continue;
    fail("{}: two columns are called {}", path, printable(names[i]));
  }
  TableColumns columns;
  const auto take = [&](const std::string& name) {
    const auto found = places.find(name);
    if (found == places.end()) {
      fail("{}: there is no '{}'; {}", path, name, one_line(did_you_mean(name, names)));
    }
    return found->second;
  };
  for (const std::string& name : config.targets) columns.targets.push_back(take(name));
  if (!config.label.empty()) columns.label = take(config.label);
  for (const std::string& name : config.inputs) columns.inputs.push_back(take(name));
  for (size_t i = 0; config.inputs.empty() && i < names.size(); ++i) {
    const bool other = i != columns.label && std::ranges::count(columns.targets, i) == 0;
    if (other) columns.inputs.push_back(i);
  }
  if (columns.inputs.empty()) fail("{}: no column is left for the inputs", path);
  return columns;
}

/// The rows of a file, and the names of its targets.
struct Table {
  at::Tensor x_Nd, y_NK, label_N;
  std::vector<std::string> targets;
};

/// Numbers of rows that are read one after the other.
class NumberRows {
 public:
  /// Appends a number; checks that there is memory before it doubles.
  void add(float number, const std::string& path) {
    if (numbers_.size() == numbers_.capacity()) {
      const auto bytes = 3.0 * sizeof(float) * static_cast<double>(numbers_.capacity());
      check_memory(bytes, "the table", path);
    }
    numbers_.push_back(number);
  }
  at::Tensor rows(int64_t count) {
    return at::from_blob(numbers_.data(), {count, std::ssize(numbers_) / count}).clone();
  }

 private:
  std::vector<float> numbers_;
};

Table read_csv_table(const fs::path& file, const TableConfig& config,
                     const std::vector<std::string>& classes) {
  const std::string path = file.string();
  csv::Reader reader(file);
  bool more = reader.next();
  if (!more) fail("{}: the file is empty", path);
  for (const char other : {';', '\t'}) {
    if (reader.size() == 1 && reader.text(0).find(other) != std::string_view::npos) {
      fail("{}: columns are separated by {}; separate them by commas", path,
           printable(std::string(1, other)));
    }
  }
  std::vector<std::string> names = numbered("", static_cast<int64_t>(reader.size()));
  if (config.has_header) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = reader.text(i);
    more = reader.next();
  }
  if (!more) fail("{}: there are no rows but the header", path);
  const TableColumns columns = table_columns(config, names, path);
  NumberRows x, y;
  std::vector<int64_t> labels;
  int64_t count = 0;
  for (; more; more = reader.next(), ++count) {
    for (const size_t i : columns.inputs) x.add(reader.number(i), path);
    for (const size_t i : columns.targets) y.add(reader.number(i), path);
    if (!columns.label) continue;
    const std::string name(reader.text(*columns.label));
    const auto found = std::ranges::find(classes, name);
    if (found == classes.end()) {
      fail("{}: there is no class {}; {}", reader.where(*columns.label), printable(name),
           did_you_mean(name, classes));
    }
    labels.push_back(found - classes.begin());
  }
  Table table{.x_Nd = x.rows(count), .targets = config.targets};
  if (columns.label) table.label_N = at::tensor(labels, at::kLong);
  if (!columns.label) table.y_NK = y.rows(count);
  return table;
}

/// Joins tensors [N] or [N, w] to [N, d]; appends to `labels`, if any, a name for each column.
at::Tensor joined_tensors(const safetensors::File& file, const std::string& path,
                          const std::vector<std::string>& names, const std::vector<size_t>& which,
                          std::vector<std::string>* labels) {
  std::vector<at::Tensor> parts;
  for (const size_t i : which) {
    const std::string& name = names[i];
    const size_t dims = file.find(name)->shape.size() == 1 ? 1 : 2;
    const at::Tensor read = read_tensor(file, path, name, dims, Numbers::any).to(at::kFloat);
    const at::Tensor x_Nw = dims == 1 ? read.unsqueeze(1) : read;
    check_finite_rows(x_Nw, path, name);
    if (!parts.empty() && parts[0].size(0) != x_Nw.size(0)) {
      fail("{}: tensor '{}' has {} rows, tensor '{}' has {}", path, name, x_Nw.size(0),
           names[which[0]], parts[0].size(0));
    }
    parts.push_back(x_Nw);
    if (labels == nullptr) continue;
    const std::vector<std::string> own =
        x_Nw.size(1) == 1 ? std::vector<std::string>{name} : numbered(name + " ", x_Nw.size(1));
    labels->insert(labels->end(), own.begin(), own.end());
  }
  return at::cat(parts, 1);
}

Table read_tensor_table(const fs::path& file_path, const TableConfig& config) {
  const std::string path = file_path.string();
  const safetensors::File file(file_path);
  std::vector<std::string> names;
  for (const safetensors::Entry& entry : file.entries()) names.push_back(entry.name);
  std::ranges::sort(names);
  const TableColumns columns = table_columns(config, names, path);
  Table table{.x_Nd = joined_tensors(file, path, names, columns.inputs, nullptr)};
  at::Tensor& target = columns.label ? table.label_N : table.y_NK;
  target = columns.label
               ? read_tensor(file, path, names[*columns.label], 1, Numbers::integer).to(at::kLong)
               : joined_tensors(file, path, names, columns.targets, &table.targets);
  if (target.size(0) != table.x_Nd.size(0)) {
    fail("{}: there are {} rows of inputs and {} of targets", path, table.x_Nd.size(0),
         target.size(0));
  }
  return table;
}

ConfigProblem check_table(const DatasetSpec& spec) {
  const auto& table = spec.format.as<TableSettings>().table;
  if (!table) return {"format table needs 'table'"};
  if (!spec.files.empty() || !spec.mean.empty() || !spec.std.empty()) {
    return {"format table has no files, mean or std", {"files:", "mean:", "std:"}};
  }
  if (table->label.empty() != spec.classes.empty()) {
    return {R"('label' of a table and 'classes' go together, e.g. "classes": ["cat", "dog"])",
            {"classes", "table.label"}};
  }
  return first_problem({classes_problem(spec), unknown_split(spec.num_images, "num_images")});
}

/// Opens rows as images of one channel and one row.
std::shared_ptr<const Dataset> open_table(const DatasetSpec& spec, DatasetInfo info,
                                          const fs::path& folder) {
  const TableConfig& config = table_of(spec);
  const fs::path path = folder / config.file_of(info.split);
  Table table = path.extension() == ".safetensors" ? read_tensor_table(path, config)
                                                   : read_csv_table(path, config, spec.classes);
  const int64_t width = table.x_Nd.size(1);
  if (config.width > 0 && width != config.width) {
    fail("{}: a row has {}, the description says {}", path.string(), count_text(width, "input"),
         config.width);
  }
  DatasetInputs rows = {.values_NCHW = table.x_Nd.unsqueeze(1).unsqueeze(1),
                        .labels_N = table.label_N,
                        .targets_NK = table.y_NK};
  keep_split(rows, {config, "table.split", "row"}, info.split, path);
  info.targets = std::move(table.targets);
  return make_input_dataset(std::move(info), std::move(rows));
}

void fill_table_info(const DatasetSpec& spec, DatasetInfo& info) {
  info.targets = table_of(spec).targets;
  fill_rows_info(info, table_of(spec).width);
}

}  // namespace

DatasetFormat table_format() {
  return {
      .settings = NamedSettings("table", TableSettings{}),
      .description = "rows of numbers with real-valued targets or classes: CSV or safetensors",
      .has_images = false,
      .check = check_table,
      .open = open_table,
      .required_paths =
          [](const DatasetSpec& spec, const std::string& split) {
            return std::vector<RequiredPath>{{table_of(spec).file_of(split), /*is_folder=*/false}};
          },
      .fill_info = fill_table_info};
}

}  // namespace moesaic
