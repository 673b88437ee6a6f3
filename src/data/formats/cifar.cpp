// SPDX-License-Identifier: Apache-2.0
// CIFAR-10 and CIFAR-100: binary batches, any number of them for each split.
#include "moesaic/formats/cifar.h"

#include <algorithm>

#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/gzip.h"

namespace moesaic {
namespace cifar {

void describe(auto& f, Layout& c) {
  f("num_label_bytes", c.num_label_bytes, "number of label bytes before the pixels", between(1, 2),
    renamed_from("label_bytes"));
  f("label_offset", c.label_offset, "index of the label among the label bytes, from 0",
    between(0, 1), renamed_from("label_at"));
}
static ConfigProblem config_problem(const Layout& c) {
  if (c.label_offset < c.num_label_bytes) return {};
  return {"label_offset must be below num_label_bytes", {"label_offset", "num_label_bytes"}};
}

}  // namespace cifar
namespace {

ConfigProblem cifar_files_problem(const DatasetSpec& spec) {
  for (const auto& [role, file] : spec.files) {
    const std::string number = role.substr(role.find('_') + 1);
    if (!(role.starts_with("train_") || role.starts_with("test_")) || !is_digits(number)) {
      return {fmt::format("unknown key '{}' in files; choose train_1, test_1 and so on", role),
              {"files." + role + ":"}};
    }
  }
  for (const char* role : {"train_1", "test_1"}) {
    if (!spec.files.contains(role)) return {fmt::format("files.{} is missing", role), {"files"}};
  }
  return {};
}

ConfigProblem check_cifar(const DatasetSpec& spec) {
  return first_problem(
      {cifar_files_problem(spec),
       spec.classes.empty() ? ConfigProblem("classes is missing") : classes_problem(spec),
       unknown_split(spec.num_images, "num_images"), channels_problem(spec, cifar::kChannels)});
}

const cifar::Layout& layout(const DatasetSpec& spec) {
  return spec.format.as<cifar::Layout>();
}

/// Returns the roles of a split in the order of their numbers: test_2 before test_10.
std::vector<std::string> numbered_roles(const DatasetSpec& spec, const std::string& split) {
  std::vector<std::string> roles;
  for (const auto& [role, file] : spec.files) {
    if (role.starts_with(split + "_")) roles.push_back(role);
  }
  std::ranges::stable_sort(roles, {}, [](const std::string& role) { return role.size(); });
  return roles;
}

/// Logs that batches without a hash are unverified, at debug level since a message at every run
/// would be noise; 'moesaic data verify' reports it.
void note_unverified(const DatasetSpec& spec, const fs::path& folder) {
  const bool all_known = std::all_of(spec.files.begin(), spec.files.end(),
                                     [](const auto& item) { return !item.second.sha256.empty(); });
  if (all_known) return;
  log_debug(
      "dataset '{}': {} was not unpacked by 'moesaic data fetch': sizes and labels are "
      "checked, pixels cannot be compared with the official archive's",
      spec.name, folder.string());
}

void set_shape(const DatasetSpec&, DatasetInfo& info) {
  info.channels = cifar::kChannels;
  info.height = cifar::kHeight;
  info.width = cifar::kWidth;
}

std::shared_ptr<const Dataset> open_cifar(const DatasetSpec& spec, DatasetInfo info,
                                          const fs::path& folder) {
  cifar::Records records;
  std::map<std::string, fs::path> paths;
  uint64_t bytes = 0;  // No more than the files can hold, whatever their description says.
  const std::vector<std::string> roles = numbered_roles(spec, info.split);
  for (const std::string& role : roles) {
    paths[role] = checked_file(spec, folder, role);
    bytes += std::min<uint64_t>(static_cast<uint64_t>(spec.files.at(role).size),
                                UnpackedReader(paths[role]).max_unpacked_size());
  }
  records.pixels.reserve(bytes);  // Once, since growing holds it twice.
  for (const std::string& role : roles) {
    const fs::path& path = paths[role];
    const size_t before = records.labels.size();
    cifar::read(path, spec.files.at(role).size, layout(spec), records);
    check_labels(std::span(records.labels).subspan(before), info.classes.size(), path.string());
  }
  note_unverified(spec, folder);
  set_shape(spec, info);
  return make_memory_dataset(std::move(info), std::move(records.pixels), std::move(records.labels));
}

/// Verifies size and labels of a file without a hash; returns the problem, or "".
std::string verify_file_cifar(const DatasetSpec& spec, const fs::path& path,
                              const DatasetFile& file) try {
  cifar::Records records;
  cifar::read(path, file.size, layout(spec), records);
  check_labels(records.labels, spec.classes.size(), path.string());
  return "";
} catch (const Error& error) {
  return error.what();
}

}  // namespace

DatasetFormat cifar_format() {
  return {
      .settings = NamedSettings("cifar", cifar::Layout{}),
      .description = "binary batches of CIFAR-10 and CIFAR-100, any number of them for each split",
      .check = check_cifar,
      .open = open_cifar,
      .fill_info = set_shape,
      .verify_file = verify_file_cifar};
}

}  // namespace moesaic
