// SPDX-License-Identifier: Apache-2.0
#include "integration/processes.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace moesaic::testing {

std::vector<ProgramResult> all_must_succeed(std::vector<ProgramResult> results,
                                            const std::source_location& place) {
  std::string said;  // The first that failed may only say that it lost the others.
  for (const ProgramResult& result : results) said += result.err;
  for (ProgramResult result : results) {
    result.err = said;
    must_succeed(std::move(result), place);
  }
  return results;
}

std::string bytes_in(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<nlohmann::json> train_lines(const std::filesystem::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line);
    if (parsed["kind"] == "train") lines.push_back(std::move(parsed));
  }
  return lines;
}

void expect_same_losses(const std::filesystem::path& one, const std::filesystem::path& other) {
  const std::vector<nlohmann::json> a = train_lines(one), b = train_lines(other);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i]["loss"], y = b[i]["loss"];
    EXPECT_EQ(a[i]["step"], b[i]["step"]);
    EXPECT_LE(std::abs(x - y), 1e-5 * std::abs(x)) << "step " << a[i]["step"];
  }
}

Strings clusters(const Strings& more) {
  return joined(
      {"train", recipe("clusters/recipes/smoke.json"), "log_every=1", "phases.train.stop=null"},
      more);
}

void expect_one_line_of_all(const std::vector<ProgramResult>& results, const std::string& text,
                            int without) {
  std::string all;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (static_cast<int>(rank) == without) continue;
    EXPECT_NE(results[rank].exit_code, 0) << rank;
    std::istringstream lines(results[rank].err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("error") != std::string::npos) all += line + "\n";
    }
  }
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1) << all;
  EXPECT_NE(all.find(text), std::string::npos) << all;
}

Strings endless(const std::string& out, int timeout) {
  return clusters({"--out", out, "phases.train.steps=100000", "phases.train.batch_size=4000",
                   "parallel.timeout=" + std::to_string(timeout), "--expert-parallel", "2"});
}

ProgramResult run_script_of_two(const Strings& arguments, const std::string& script) {
  const ProgramOptions options{.environment = {"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                               "OMP_NUM_THREADS=1",
                                               "MASTER_PORT=" + std::to_string(free_port())}};
  return run_command(joined({"/bin/sh", "-c", script, "sh", MOESAIC_PROGRAM}, arguments), options);
}

}  // namespace moesaic::testing
