// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../files.h"
#include "../image_files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/random.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

struct Dtype {
  std::string_view name;
  at::ScalarType type;
  Numbers kind;
};
constexpr Dtype kDtypes[] = {
    {"BF16", at::kBFloat16, Numbers::floating}, {"F16", at::kHalf, Numbers::floating},
    {"F32", at::kFloat, Numbers::floating},     {"F64", at::kDouble, Numbers::any},
    {"I16", at::kShort, Numbers::integer},      {"I32", at::kInt, Numbers::integer},
    {"I64", at::kLong, Numbers::integer},       {"I8", at::kChar, Numbers::integer},
    {"U8", at::kByte, Numbers::integer}};

}  // namespace

ConfigProblem classes_problem(const DatasetSpec& spec, int64_t num_classes) {
  const size_t count = spec.classes.size();
  if (std::find(spec.classes.begin(), spec.classes.end(), "") != spec.classes.end()) {
    return {"classes has an empty name; give each class a name", {"classes"}};
  }
  if (const std::string* name = repeated_name(spec.classes)) {
    return {fmt::format("classes names {} twice; leave one out", printable(*name)), {"classes"}};
  }
  if (num_classes > 0 && count > 0 && static_cast<size_t>(num_classes) != count) {
    return {fmt::format("num_classes is {}, but classes has {}", num_classes, count),
            {"num_classes", "classes"}};
  }
  return {};
}

void count_classes(DatasetInfo& info, int64_t count) {
  info.has_class_names = false;
  for (int64_t i = 0; i < count; ++i) info.classes.push_back(fmt::format("class {}", i));
}

ConfigProblem channels_problem(const DatasetSpec& spec, size_t channels) {
  if (spec.mean.size() == channels && spec.std.size() == channels) return {};
  return {fmt::format("{} images have {}: mean and std need {} each", spec.format.name(),
                      channels == 1 ? "one channel" : "three channels",
                      channels == 1 ? "one number" : "three numbers"),
          {spec.mean.size() == channels ? "std" : "mean"}};
}

ConfigProblem open_channels_problem(const DatasetSpec& spec) {
  if (spec.mean.empty() && spec.std.empty()) return {};
  return channels_problem(spec, spec.mean.size() == 1 ? 1 : 3);
}

bool complete_channels(DatasetSpec& spec) {
  if (!spec.mean.empty() || !spec.std.empty()) return false;
  spec.mean = {0.485, 0.456, 0.406};
  spec.std = {0.229, 0.224, 0.225};
  return true;
}

ConfigProblem no_files_problem(const DatasetSpec& spec) {
  if (spec.files.empty()) return {};
  return {fmt::format("format {} has no described files", spec.format.name()), {"files:"}};
}

ConfigProblem no_images_problem(const DatasetSpec& spec) {
  if (spec.files.empty() && spec.mean.empty() && spec.std.empty() && spec.classes.empty()) {
    return {};
  }
  return {fmt::format("format {} has no files, mean, std or classes", spec.format.name()),
          {"files:", "mean:", "std:", "classes:"}};
}

fs::path checked_file(const DatasetSpec& spec, const fs::path& folder, const std::string& role) {
  const DatasetFile& file = spec.files.at(role);
  const fs::path path = find_in(folder, file);
  const std::string problem = compare_file(path, file);
  if (!problem.empty()) fail("{}; see moesaic data verify {}", problem, spec.name);
  return path;
}

ConfigProblem split_files_problem(const SplitFiles& files) {
  const auto& [train, test, file, test_fraction, seed] = files;
  const bool one = !file.empty();
  const bool any = !train.empty() || !test.empty();
  const bool both = !train.empty() && !test.empty();
  if (one == any || (any && !both)) {
    return {"either 'file', or both 'train' and 'test' must be given", {"file", "train", "test"}};
  }
  for (const std::string* name : {&file, &train, &test}) {
    if (name->empty() || is_file_name(*name)) continue;
    return {file_name_problem("'file', 'train' and 'test' each", *name), {"file", "train", "test"}};
  }
  return {};
}

void keep_split(DatasetInputs& rows, const RowSplit& by, const std::string& split,
                const fs::path& path) {
  if (by.files.file.empty()) return;
  const int64_t count = rows.values_NCHW.size(0);
  const auto test =
      static_cast<int64_t>(std::llround(by.files.test_fraction * static_cast<double>(count)));
  if (test == 0 || test == count) {
    fail("{}: test_fraction {} of {} {}s leaves no {} to {}", path.string(), by.files.test_fraction,
         count, by.noun, by.noun, test == 0 ? "test with" : "train on");
  }
  std::vector<int64_t> order =
      permutation(count, static_cast<uint64_t>(by.files.seed), stream_id(by.stream));
  std::sort(order.begin(), order.begin() + test);
  std::sort(order.begin() + test, order.end());
  const at::Tensor all = at::tensor(order, at::kLong);
  const at::Tensor own = split == "test" ? all.slice(0, 0, test) : all.slice(0, test);
  for_each_tensor(rows, [&](at::Tensor& tensor) { tensor = tensor.index_select(0, own); });
}

void fill_rows_info(DatasetInfo& info, int64_t width) {
  info.channels = info.height = 1;
  info.width = width;
  info.mean = {0.0};
  info.std = {1.0};
}

void warn_of_twins(const DatasetInfo& info) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> pairs;
  for (const auto& [i, j] : lookalikes(info.classes)) {
    pairs.push_back(fmt::format("'{}', {} and {}", one_line(info.classes[j]),
                                spelled_out(info.classes[i]), spelled_out(info.classes[j])));
  }
  if (pairs.empty()) return;
  std::string more;
  if (pairs.size() > kNamed) more = fmt::format("; and {} more", pairs.size() - kNamed);
  pairs.resize(std::min(pairs.size(), kNamed));
  log_once(LogLevel::warning, fmt::format("dataset '{}': two classes are called {}{}", info.name,
                                          fmt::join(pairs, "; and two "), more));
}

void check_labels(std::span<const uint8_t> labels, size_t classes, const std::string& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= classes) {
      fail("{}: label {} of image {} has no class: there are {}", where, labels[i], i, classes);
    }
  }
}

at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, size_t dims, Numbers kind) {
  const safetensors::Entry* entry = file.find(name);
  if (entry == nullptr) fail("{}: tensor '{}' is missing", path, name);
  if (entry->shape.size() != dims) {
    fail("{}: tensor '{}' must have {}, found shape [{}]", path, name,
         dims == 1 ? "one dimension" : "two dimensions", fmt::join(entry->shape, ", "));
  }
  if (std::find(entry->shape.begin(), entry->shape.end(), 0) != entry->shape.end()) {
    fail("{}: tensor '{}' is empty: [{}]", path, name, fmt::join(entry->shape, ", "));
  }
  std::vector<std::string_view> allowed;
  std::optional<at::ScalarType> type;
  for (const Dtype& dtype : kDtypes) {
    if (kind != Numbers::any && dtype.kind != kind) continue;
    allowed.push_back(dtype.name);
    if (dtype.name == entry->dtype) type = dtype.type;
  }
  if (!type) {
    fail("{}: tensor '{}' must be one of {}, found {}", path, name, fmt::join(allowed, ", "),
         entry->dtype);
  }
  at::Tensor tensor = at::empty(entry->shape, at::TensorOptions(*type));
  const auto bytes = file.bytes(*entry);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void check_finite_rows(const at::Tensor& x_Nd, const std::string& path, const std::string& name) {
  const at::Tensor finite_N = x_Nd.isfinite().all(1);
  if (finite_N.all().item<bool>()) return;
  fail("{}: tensor '{}' holds a number that is not finite in row {}", path, name,
       finite_N.to(at::kInt).argmin().item<int64_t>());
}

std::vector<FileVerification> verify_by_opening(const DatasetSpec& spec, const std::string& split,
                                                const fs::path& folder) {
  const DatasetFormat& format = format_of(spec);
  std::shared_ptr<const Dataset> data;
  std::vector<FileVerification> results;
  if (const auto parts = format.required_paths(spec, split); !format.has_images && !parts.empty()) {
    const std::string& file = parts[0].path;
    const auto of_train = format.required_paths(spec, "train");
    if (split == "test" && !of_train.empty() && of_train[0].path == file) return {};
    results.push_back({file, folder / file, ""});
  }
  try {
    data = format.open(spec, info_from_spec(spec, split), folder);
  } catch (const Error& error) {
    if (results.empty()) throw;
    results[0].problem = error.what();
  }
  const auto images = std::dynamic_pointer_cast<const StoredImages>(data);
  if (!images) return results;
  results = verify_images(*images);
  const auto expected = spec.num_images.find(split);
  if (expected != spec.num_images.end() && expected->second != images->size()) {
    results.push_back({split, folder,
                       fmt::format("{}: {}, expected {}", split,
                                   count_text(images->size(), "image"), expected->second)});
  }
  return results;
}

}  // namespace moesaic
