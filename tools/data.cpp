// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <memory>
#include <string>

#include "moesaic/base/text.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/fetch.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

void list_data() {
  for (const auto& status : dataset_statuses()) {
    std::cout << fmt::format("{:<24} {:>4} classes  {}\n", status.name, status.classes,
                             status.where());
    std::cout << fmt::format("{:<24} {}\n", "", status.description);
    std::cout << fmt::format("{:<24} {}\n", "", fmt::join(dataset_splits(status.name), ", "));
  }
}

void fetch_data(const std::string& name) {
  const FetchResult result = fetch_dataset(name);
  if (result.folder.empty()) {
    std::cout << fmt::format("{}: made when it is opened, nothing to fetch\n", name);
  } else if (result.fetched.empty()) {
    const bool hashed = !load_base_spec(name).files.empty();
    std::cout << fmt::format(
        "{}: {} in {}\n", name,
        hashed ? "complete and verified" : "here, for 'moesaic data verify' to read,",
        result.folder.string());
  } else {
    const std::string files = count_text(static_cast<int64_t>(result.fetched.size()), "file");
    std::cout << fmt::format("{}: {} fetched and verified in {}\n", name, files,
                             result.folder.string());
  }
}

void verify_data(const std::string& name, int& exit_code) {
  for (const auto& file : verify_dataset(name)) {
    const std::string status = !file.ok()           ? file.problem
                               : file.doubt.empty() ? "ok"
                                                    : "unproven: " + file.doubt;
    std::cout << fmt::format("{:<28} {}\n", file.name, status);
    if (!file.ok()) exit_code = 1;
  }
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("data", "List, fetch and verify datasets");
  verb->require_subcommand(1);
  verb->add_subcommand("list", "Datasets, and where their files are")->callback(list_data);
  const auto with_name = [&](const char* name, const char* help, auto action) {
    auto* command = verb->add_subcommand(name, help);
    auto dataset = std::make_shared<std::string>();
    command->add_option("NAME", *dataset, "dataset")->required();
    command->callback([dataset, action] { action(*dataset); });
  };
  with_name("fetch", "Download a dataset and check its SHA-256", fetch_data);
  with_name("verify", "Check a dataset's files against their SHA-256, or decode all its images",
            [&exit_code](const std::string& name) { verify_data(name, exit_code); });
}

}  // namespace moesaic::tools
