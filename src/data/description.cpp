// SPDX-License-Identifier: Apache-2.0
// Descriptions of datasets: what goes together in them, where they are found by name.
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "files.h"
#include "formats/checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {
namespace {

fs::path description_folder() {
  return resource("datasets");
}

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

/// Checks a name that becomes one of a folder that is written to.
ConfigProblem name_problem(const std::string& setting, const std::string& name) {
  if (is_portable_name(name)) return {};
  return {fmt::format("{} must be a name of letters, digits, '-', '_' and '.', not {}", setting,
                      printable(name)),
          {setting}};
}

/// Returns the settings by which a description derives a dataset from its base.
std::vector<std::string> ways_of(const DatasetSpec& spec) {
  std::vector<std::string> ways;
  if (!spec.keep_classes.empty()) ways.emplace_back("keep_classes");
  if (!spec.num_first_images.empty()) ways.emplace_back("num_first_images");
  if (spec.rotate) ways.emplace_back("rotate");
  if (spec.mosaic) ways.emplace_back("mosaic");
  if (spec.backdrop) ways.emplace_back("backdrop");
  return ways;
}

ConfigProblem own_problem(const DatasetSpec& spec) {
  if (spec.exif_orientation && !format_of(spec).has_exif) {
    return {fmt::format("exif_orientation is for photos, but format {} has none; leave it out",
                        spec.format.name()),
            {"exif_orientation"}};
  }
  const ConfigProblem problem = format_of(spec).check(spec);
  if (!problem.empty()) return problem;
  const bool has_validation = std::ranges::count(spec.stored_splits(), "validation") > 0;
  if (has_validation && spec.validation.value_or(0.0) > 0.0) {
    return {"there is a validation split already: leave 'validation' out", {"validation"}};
  }
  const std::vector<std::string> ways = ways_of(spec);
  if (ways.empty()) return {};
  return {ways[0] + " needs base, the dataset to derive from", {ways[0]}};
}

/// An address is shown in messages and kept in runs; only what is called a token is sent.
ConfigProblem web_problem(const DatasetSpec& spec) {
  for (const std::string& url : spec.urls) {
    if (std::string problem = url_problem(url); !problem.empty()) return {problem, {"urls:"}};
  }
  if (spec.token_env.empty() || spec.token_env.ends_with("TOKEN")) return {};
  return {fmt::format("token_env must name an environment variable that ends in TOKEN, not {}",
                      printable(spec.token_env)),
          {"token_env"}};
}

ConfigProblem derived_problem(const DatasetSpec& spec) {
  const std::vector<std::string> ways = ways_of(spec);
  if (ways.size() > 1 || (ways.empty() && !spec.validation && !spec.exif_orientation)) {
    return {
        fmt::format("a dataset with base needs exactly one of keep_classes, num_first_images, "
                    "rotate, mosaic and backdrop, or none with another validation or "
                    "exif_orientation; found {}",
                    ways.empty() ? "none of these" : fmt::format("{}", fmt::join(ways, " and "))),
        {"base"}};
  }
  const ConfigProblem problem = unknown_split(spec.num_first_images, "num_first_images");
  if (!problem.empty()) return problem;
  if (!spec.classes.empty() || !spec.files.empty() || !spec.mean.empty() || !spec.std.empty()) {
    return {"a dataset with base takes classes, mean, std and files from its base; leave them out",
            {"classes:", "files:", "mean:", "std:"}};
  }
  return {};
}

DatasetSpec spec_from_file(const fs::path& source, std::string_view name) {
  DatasetSpec spec = parse<DatasetSpec>(Document::from_file(source, kMaxListBytes).root());
  if (spec.name != name) {
    fail_usage("{}: name is {}, so the file must be called {}.json; or set name to '{}'",
               source.string(), printable(spec.name), one_line(spec.name), name);
  }
  spec.spec_folder = fs::absolute(source).parent_path().lexically_normal().string();
  const auto make_lasting = [&](std::string& other) {
    const fs::path beside = source.parent_path() / other;
    if (is_path(other) && path_exists(beside)) other = absolute_name(beside.string());
  };
  make_lasting(spec.base);
  if (spec.backdrop) make_lasting(spec.backdrop->images);
  if (spec.base.empty()) format_of(spec).complete(spec);
  return spec;
}

bool is_description(const fs::path& file) try {
  const Document document = Document::from_file(file, kMaxListBytes);
  return document.root().find("name") != nullptr &&
         (document.root().find("format") != nullptr || document.root().find("base") != nullptr);
} catch (const Error&) {
  return false;
}

/// Returns the description in a folder, such as one of packed shards, that has no split train and
/// no other description; else nothing.
fs::path description_in(const fs::path& folder) {
  fs::path found;
  std::error_code error;
  if (fs::is_directory(folder / "train", error)) return found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".json" || !is_description(it->path())) continue;
    if (!found.empty()) return {};
    found = it->path();
  }
  return found;
}

/// Returns what may be meant by a folder that is not there, as a part of a line: the described set
/// of its name, else a folder beside it, else a set of nearly its name.
std::string instead_of(const fs::path& folder) {
  const std::string name = name_without_folders(folder.string());
  const auto meant = nearest(name, dataset_names());
  const std::string set = meant ? fmt::format("; did you mean '{}'?", *meant) : "";
  if (meant == name) return set;
  const std::string sibling = nearest_sibling(folder);
  return sibling.find("did you mean") == sibling.npos ? sibling + set : sibling;
}

/// Returns the hint, or else how to list what there is.
std::string or_list(const std::string& hint) {
  return hint.empty() ? "; moesaic list datasets lists datasets with a name" : hint;
}

/// Returns the description of a folder without one.
DatasetSpec spec_of_folder(const fs::path& folder) {
  const fs::file_status found = status_of(folder);
  if (fs::exists(found) && !fs::is_directory(found)) {
    fail_usage("dataset '{}' is a file; a description ends in .json, images lie in a folder",
               folder.string());
  }
  if (!fs::is_directory(found)) {
    // A name without a slash would be that of a described set.
    fail_usage("'{}': no such folder{}", folder.string(), or_list(instead_of(folder)));
  }
  DatasetSpec spec = {.name = folder.string(),
                      .description = "a folder of images",
                      .format = dataset_formats().at("image_folder").settings,
                      .paths = {fs::absolute(folder).string()}};
  format_of(spec).complete(spec);
  return spec;
}

}  // namespace

bool DatasetSpec::is_generated() const {
  return base.empty() && format_of(*this).is_generated;
}

std::vector<std::string> DatasetSpec::stored_splits() const {
  return format_of(*this).splits(*this);
}

std::string config_problem(const DatasetFile& file) {
  if (!is_file_name(file.name)) return file_name_problem("name", file.name);
  return hash_problem("sha256", file.sha256, 64);
}

std::string config_problem(const DatasetArchive& archive) {
  if (!is_file_name(archive.name)) return file_name_problem("name", archive.name);
  if (!is_portable_name(archive.folder)) return file_name_problem("folder", archive.folder);
  if (archive.md5.empty() && archive.sha256.empty()) return "md5 or sha256 is missing";
  const std::string problem = hash_problem("md5", archive.md5, 32);
  return problem.empty() ? hash_problem("sha256", archive.sha256, 64) : problem;
}

ConfigProblem config_problem(const DatasetSpec& spec) {
  const std::string& folder = spec.folder.empty() ? spec.name : spec.folder;
  const ConfigProblem problem =
      first_problem({name_problem("name", spec.name), name_problem("folder", folder),
                     web_problem(spec), unit_problem(spec.mean, spec.std)});
  if (!problem.empty()) return problem;
  return spec.base.empty() ? own_problem(spec) : derived_problem(spec);
}

bool has_spec(const std::string& name) {
  if (is_path(name)) return path_exists(name);
  return std::ranges::count(dataset_names(), name) > 0;
}

std::string absolute_name(const std::string& name) {
  return is_path(name) ? absolute_path(name) : name;
}

std::string name_without_folders(const std::string& name) {
  // The name of "./" is that of the folder where it is.
  const fs::path path = (is_path(name) ? fs::absolute(name) : fs::path(name)).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(description_folder(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
  }
  if (error) {
    fail("{}: {} (MOESAIC_HOME must name the folder that holds datasets/)",
         description_folder().string(), error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

DatasetSpec load_dataset_spec(std::string_view name) {
  const fs::path path(name);
  if (path.extension() == ".json") {
    if (!fs::exists(status_of(path))) {
      fail_usage("dataset '{}': no such file{}", name, or_list(nearest_sibling(path)));
    }
    return spec_from_file(path, path.stem().string());
  }
  if (name.find('/') != std::string_view::npos) {
    const fs::path inside = description_in(path);
    return inside.empty() ? spec_of_folder(path) : spec_from_file(inside, inside.stem().string());
  }
  const std::vector<std::string> names = dataset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    for (const char* ending : {"/", ".json"}) {
      const std::string meant = std::string(name) + ending;
      if (name.empty() || !fs::exists(status_of(meant))) continue;
      fail_usage("unknown dataset '{}'; did you mean '{}'?", name, meant);
    }
    fail_usage("unknown dataset '{}' (a folder of images needs a slash in its name); {}", name,
               did_you_mean(name, names));
  }
  return spec_from_file(description_folder() / (std::string(name) + ".json"), name);
}

}  // namespace moesaic
