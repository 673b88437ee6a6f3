// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
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

const bench::Benchmark& find(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& benchmark : bench::benchmarks()) {
    if (benchmark.name == name) return benchmark;
    names.push_back(benchmark.name);
  }
  fail_usage("bench: unknown benchmark '{}'; {}", name, did_you_mean(name, names));
}

void run(const std::string& name, bool json) {
  const bench::Benchmark& benchmark = find(name);
  auto rows = nlohmann::ordered_json::array();
  std::ostream& lines = json ? std::cerr : std::cout;
  lines << fmt::format("{:<28} {:>10} {:>10}     {:>7}  {:<8} {}\n", benchmark.name, "ours", "peer",
                       "ratio", "goal", "what is compared");
  benchmark.run([&](const bench::Row& row) {
    lines << to_text(row) << std::flush;
    rows.push_back(to_json(row));
  });
  if (json) std::cout << nlohmann::ordered_json{{"rows", rows}}.dump(2) << '\n';
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  auto* verb = app.add_subcommand("bench", "Time this software against others' way to do the same");
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("NAME", *name, "operators")->required();
  verb->add_flag("--json", *json, "print one JSON document; lines go to standard error");
  verb->callback([name, json] { run(*name, *json); });
}

}  // namespace moesaic::tools
