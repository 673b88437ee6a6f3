// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/pack.h"
#include "moesaic/data/source.h"
#include "train_help.h"

namespace moesaic::tools {
namespace {

void list_data() {
  for (const std::string& name : dataset_names()) {
    const DatasetSource source(name);
    const int64_t classes = source.num_classes();
    std::cout << fmt::format("{:<24} {:>13}  {}\n", escaped(name),
                             classes == 0 ? "" : count_text(classes, "class"),
                             escaped(source.where()));
    std::cout << fmt::format("{:<24} {}\n", "", escaped(source.spec().description));
    std::cout << fmt::format("{:<24} {}\n", "",
                             escaped(fmt::to_string(fmt::join(source.splits(), ", "))));
  }
}

void fetch_data(const std::string& name) {
  require_single_process("data fetch");
  const FetchResult result = DatasetSource(name).fetch();
  if (result.folder.empty()) {
    std::cout << fmt::format("{}: generated when opened, nothing to fetch\n", name);
    return;
  }
  const bool verified = result.unhashed.empty();
  std::string state = "here, for 'moesaic data verify' to read,";
  if (!result.fetched.empty()) {
    state = count_text(static_cast<int64_t>(result.fetched.size()), "file") +
            (verified ? " fetched and verified" : " fetched");
  } else if (verified && !DatasetSource(name).base().files.empty()) {
    state = "complete and verified";
  }
  std::string doubt;
  if (!verified) {
    doubt = fmt::format("; not verified: no SHA-256 of {} is described",
                        count_text(static_cast<int64_t>(result.unhashed.size()), "file"));
  }
  std::cout << fmt::format("{}: {} in {}{}\n", name, state, result.folder.string(), doubt);
}

void verify_data(const std::string& name, int& exit_code) {
  for (const auto& file : DatasetSource(name).verify()) {
    const std::string status = !file.ok()                ? file.problem
                               : file.unverified.empty() ? "ok"
                                                         : "unverified: " + file.unverified;
    std::cout << fmt::format("{:<28} {}\n", escaped(file.name), escaped(status));
    if (!file.ok()) exit_code = 1;
  }
}

struct PackArguments {
  std::string name, out;
  PackOptions options;
};

/// Returns the folder that is written where none is named: the dataset's name, here.
std::string default_folder(const std::string& name) {
  std::string stem = name_without_folders(name);
  if (stem.ends_with(".json")) stem.resize(stem.size() - 5);
  return portable_name(stem + "-shards");
}

void pack_data(const PackArguments& arguments) {
  const std::string out = arguments.out.empty() ? default_folder(arguments.name) : arguments.out;
  const PackResult result = pack_dataset(arguments.name, out, arguments.options);
  for (const PackedSplit& split : result.splits) {
    std::cout << fmt::format(
        "{:<10} {} in {}, {}{}\n", escaped(split.split), count_text(split.num_images, "image"),
        count_text(split.num_shards, "shard"), bytes_text(static_cast<double>(split.bytes)),
        split.num_skipped == 0
            ? ""
            : fmt::format("; {} left out", count_text(split.num_skipped, "image")));
  }
  std::cout << fmt::format("train on it with phases.0.data={}\n",
                           escaped(result.description.string()));
}

void add_pack(CLI::App& verb) {
  auto* command = add_verb(verb, "pack", "Pack a dataset's images into tar shards.",
                           "data pack ./photos/ --shards 128 --size 256");
  auto arguments = std::make_shared<PackArguments>();
  PackOptions& options = arguments->options;
  constexpr int64_t kMost = 1'000'000;
  add_value(*command, "folder", arguments->name, "FOLDER|NAME", known_dataset(),
            "folder of images, with a slash, or dataset")
      ->required();
  command
      ->add_option("--shards", options.num_shards,
                   "number of tar archives for the largest split; those of other splits hold as "
                   "many images each")
      ->required()
      ->check(whole_number(1, kMost));
  command
      ->add_option("--size", options.size,
                   "length in pixels of the shorter side to which larger images are resized (no "
                   "resizing: files are copied unchanged)")
      ->check(whole_number(1, kMost));
  command->add_option("--quality", options.quality, "quality of resized JPEG images, 1 to 100")
      ->capture_default_str()
      ->check(whole_number(1, 100));
  command->add_option("--split", options.split, "name of the only split to pack (all splits)")
      ->type_name("NAME");
  command->add_option("--seed", options.seed, "seed of the order of the images")
      ->capture_default_str();
  add_text(*command, "--out", arguments->out, "DIR",
           "folder of the shards and of their description, named after it (NAME-shards)");
  command->callback([arguments] {
    require_single_process("data pack");
    pack_data(*arguments);
  });
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  auto* verb =
      add_verb(app, "data", "List, fetch, verify and pack datasets.", "data fetch cifar10");
  verb->require_subcommand(1);
  add_verb(*verb, "list", "List datasets, and where their files are.", "data list")
      ->callback(list_data);
  const auto with_name = [&](const char* name, const char* help, auto action) {
    auto* command = add_verb(*verb, name, help, fmt::format("data {} cifar10", name));
    auto dataset = std::make_shared<std::string>();
    command->add_option("name", *dataset, "name of the dataset")->required()->type_name("NAME");
    command->callback([dataset, action] { action(*dataset); });
  };
  with_name("fetch", "Download a dataset and check its SHA-256.", fetch_data);
  with_name("verify", "Compare a dataset's files with their SHA-256, or decode its images.",
            [&exit_code](const std::string& name) { verify_data(name, exit_code); });
  add_pack(*verb);
  // Not before the commands, which take the flag over.
  add_topic_help(
      *verb,
      "print this help, or the settings of a dataset's JSON description: --help describe [KEY], "
      "--help format NAME",
      [](const auto& words) { return words.empty() ? "" : description_help(words); });
}

}  // namespace moesaic::tools
