// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/process.h"
#include "moesaic/base/resources.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

nlohmann::ordered_json to_json(const bench::Row& row) {
  nlohmann::ordered_json json = {{"name", row.name},   {"ours", row.ours},
                                 {"peer", row.peer},   {"unit", row.unit},
                                 {"ratio", row.ratio}, {"meaning", row.meaning}};
  if (row.at_least) json["at_least"] = *row.at_least;
  if (row.at_most) json["at_most"] = *row.at_most;
  return json;
}

std::string to_text(const bench::Row& row) {
  std::string goal;
  if (row.at_least) goal = fmt::format(">= {}", *row.at_least);
  if (row.at_most) goal = fmt::format("<= {}", *row.at_most);
  return fmt::format("{:<28} {:>10.3f} {:>10.3f} {:<3} {:>7.2f}  {:<8} {}\n", row.name, row.ours,
                     row.peer, row.unit, row.ratio, goal, row.meaning);
}

/// Returns "operators: meaning; ...".
std::string names_and_descriptions() {
  std::string text;
  for (const auto& benchmark : bench::benchmarks()) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "; ", benchmark.name, benchmark.description);
  }
  return text;
}

const bench::Benchmark& find(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& benchmark : bench::benchmarks()) {
    if (benchmark.name == name) return benchmark;
    names.push_back(benchmark.name);
  }
  fail_usage("bench: unknown benchmark '{}'; {}", name, did_you_mean(name, names));
}

struct ClosePipe {
  void operator()(FILE* pipe) const { ::pclose(pipe); }
};
using Pipe = std::unique_ptr<FILE, ClosePipe>;

/// Returns the commit of the sources, with "-dirty" appended if they are modified.
std::string commit() {
  const std::string command = fmt::format("git -C {} describe --always --dirty 2>/dev/null",
                                          shell_quoted(resource_root().string()));
  std::string found;
  if (const Pipe pipe(::popen(command.c_str(), "r")); pipe) {
    char buffer[128];
    while (std::fgets(buffer, sizeof buffer, pipe.get()) != nullptr) found += buffer;
  }
  found.erase(found.find_last_not_of(" \n") + 1);
  return found.empty() ? "unknown" : found;
}

struct BenchOptions {
  std::string name, file;
  bool json = false;
};

void write_figures(const BenchOptions& options, const nlohmann::ordered_json& rows) {
  const nlohmann::ordered_json figures = {
      {"benchmark", options.name},
      {"chip", bench::chip()},
      {"commit", commit()},
      {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::to_time_t(
                                              std::chrono::system_clock::now())))},
      {"rows", rows}};
  write_atomic(options.file, figures.dump(2) + "\n");
}

/// Checks the output folder before minutes of measurements.
void check_folder(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    fail_usage("bench: --write {}: there is no folder {}", file, folder.string());
  }
}

void run(const BenchOptions& options) {
  const bench::Benchmark& benchmark = find(options.name);
  if (!options.file.empty()) check_folder(options.file);
  auto rows = nlohmann::ordered_json::array();
  std::ostream& lines = options.json ? std::cerr : std::cout;
  lines << fmt::format("{:<28} {:>10} {:>10}     {:>7}  {:<8} {}\n", benchmark.name, "ours", "peer",
                       "ratio", "goal", "what is compared");
  benchmark.run([&](const bench::Row& row) {
    lines << to_text(row) << std::flush;
    rows.push_back(to_json(row));
  });
  if (const std::string left_out = benchmark.left_out(); !left_out.empty()) {
    lines << left_out << '\n';
  }
  if (!options.file.empty()) write_figures(options, rows);
  if (options.json) std::cout << nlohmann::ordered_json{{"rows", rows}}.dump(2) << '\n';
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  auto* verb = app.add_subcommand("bench", "Time this software against others' way to do the same");
  auto options = std::make_shared<BenchOptions>();
  verb->add_option("NAME", options->name, names_and_descriptions())->required();
  verb->add_flag("--json", options->json, "print one JSON document; lines go to standard error");
  verb->add_option("--write", options->file,
                   "write the figures with chip, commit and date, as in tests/bench/results/")
      ->type_name("FILE");
  verb->callback([options] { run(*options); });
}

}  // namespace moesaic::tools
