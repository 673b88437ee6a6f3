// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>

#include "bench/bench.h"
#include "command_line.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/models/model.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/report/throughput.h"
#include "moesaic/train/distributed_run.h"
#include "runtime.h"

namespace moesaic::tools {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const bench::NamedRow& result) {
  if (!result.error.empty()) return {{"name", result.name}, {"error", result.error}};
  const bench::Row& row = result.row;
  Json json = {{"name", result.name}, {"ours", row.ours},   {"peer", row.peer},
               {"unit", row.unit},    {"ratio", row.ratio}, {"meaning", row.description}};
  if (row.at_least) json["at_least"] = *row.at_least;
  if (row.at_most) json["at_most"] = *row.at_most;
  return json;
}

std::string to_text(const bench::NamedRow& result) {
  if (!result.error.empty()) return fmt::format("{:<28} failed: {}\n", result.name, result.error);
  const bench::Row& row = result.row;
  std::string goal;
  if (row.at_least) goal = fmt::format(">= {}", *row.at_least);
  if (row.at_most) goal = fmt::format("<= {}", *row.at_most);
  return fmt::format("{:<28} {:>10.3f} {:>10.3f} {:<3} {:>7.2f}  {:<8} {}\n", result.name, row.ours,
                     row.peer, row.unit, row.ratio, goal, row.description);
}

/// Returns a line "operators: meaning" for each benchmark.
std::string names_and_descriptions() {
  std::string text;
  for (const auto& benchmark : bench::benchmarks()) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "\n", benchmark.name, benchmark.description);
  }
  return text;
}

const bench::Benchmark& find(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& benchmark : bench::benchmarks()) {
    if (benchmark.name == name) return benchmark;
    names.push_back(benchmark.name);
  }
  if (nearest(name, names)) {
    fail_usage("bench: unknown benchmark '{}'; {}", name, did_you_mean(name, names));
  }
  const std::string network = nearest_network(name);
  fail_usage("bench: '{}' is neither a benchmark nor a run or checkpoint{}", name,
             network.empty() ? "; name the folder of one, or " + did_you_mean("", names) : network);
}

/// Returns the commit of the sources, with "-dirty" appended if they are modified.
std::string commit() {
  const std::string command = fmt::format("git -C {} describe --always --dirty 2>/dev/null",
                                          shell_quoted(resource_root().string()));
  std::string found;
  run_with_input({"sh", "-c", command}, "", {}, {}, &found);
  found.erase(found.find_last_not_of(" \n") + 1);
  return found.empty() ? "unknown" : found;
}

struct BenchOptions {
  std::string name, file, rows = "*", device = "cpu", precision = "float32";
  std::vector<int64_t> batch_sizes = {1, 8, 32, 128};
  double seconds = LatencyOptions().seconds;
  bool json = false, trust = false;
};

void write_figures(const BenchOptions& options, const std::string& chip, const Json& rows,
                   int64_t processes = 1) {
  Json figures = {
      {"benchmark", options.name},
      {"chip", chip},
      {"commit", commit()},
      {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::to_time_t(
                                              std::chrono::system_clock::now())))},
      {"rows", rows}};
  if (processes > 1) figures["processes"] = processes;
  write_atomic(options.file, figures.dump(2) + "\n");
}

/// Checks the output folder before minutes of measurements.
void check_folder(const std::string& file) {
  const fs::path folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder)) {
    fail_usage("bench: --write {}: no such folder {}{}", file, folder.string(),
               nearest_sibling(folder));
  }
  if (!path_exists(file)) return check_new_file(file, "bench: --write");
  const bool regular = fs::is_regular_file(file) && !fs::is_symlink(file);
  if (regular && fs::is_empty(file)) return;
  const auto json =
      regular ? find_json(read_text(file, kMaxListBytes, "a file of figures"), kMaxListBytes)
              : std::nullopt;
  const auto has = [&](const char* key) { return json->contains(key); };
  if (!json || !json->is_object() || !has("benchmark") || !has("chip") || !has("rows")) {
    fail_usage("bench: --write {}: the file there was not written by bench; name a new one", file);
  }
}

/// Times passes while the other processes make theirs: images, memory and passes of all of them,
/// and the times of the slowest.
Latency measure_together(Model& model, const LatencyOptions& options,
                         const ProcessMesh* processes) {
  if (processes == nullptr) return measure_latency(model, options);
  processes->set_activity("a measurement");
  processes->barrier();
  Latency found = measure_latency(model, options);
  const std::string own =
      Json{found.images_per_second, found.median_ms, found.p95_ms, found.bytes, found.num_passes}
          .dump();
  found = {.batch_size = found.batch_size};
  processes->barrier();
  for (const std::string& text : processes->world().all_gather_strings(own)) {
    const Json of_one = parse_stored(text, "a process").to_json();
    found.images_per_second += of_one[0].get<double>();
    found.median_ms = std::max(found.median_ms, of_one[1].get<double>());
    found.p95_ms = std::max(found.p95_ms, of_one[2].get<double>());
    found.bytes += of_one[3].get<double>();
    found.num_passes += of_one[4].get<int64_t>();
  }
  return found;
}

/// Measures a checkpoint's network, on all processes at once.
void run_checkpoint(BenchOptions options, const ProcessMesh* processes) {
  keep_freed_memory();
  const bool is_rank_zero = processes == nullptr || processes->is_rank_zero();
  const int64_t count = processes == nullptr ? 1 : processes->size();
  Checkpoint checkpoint = load_newest_checkpoint(
      options.name, {.load_optimizer = false, .trust = options.trust, .accept_program = true});
  const std::shared_ptr<Model> model = model_of(checkpoint);
  checkpoint.model.clear();  // The model holds copies.
  if (processes != nullptr) {
    check_same_build(*processes);
    sync_network(*processes, checkpoint.folder, *model);
  }
  model->to(at::Device(options.device));
  const std::string precision = use_precision(*model, options.precision);
  Footprint size = footprint(*model);
  const bool program = is_exported_program(checkpoint.folder);
  if (program) size.bytes = static_cast<int64_t>(fs::file_size(checkpoint.folder));
  const std::string chip = options.device == "cpu" ? bench::processor() : bench::chip();
  std::ostream none(nullptr);
  std::ostream& lines = !is_rank_zero ? none : options.json ? std::cerr : std::cout;
  lines << fmt::format(
      "checkpoint  {}\nprocessor   {}, {}{}, {}\nweights     {}, {} parameters\n"
      "{:>8} {:>12} {:>12} {:>12} {:>12}\n",
      checkpoint.folder.string(), chip, count == 1 ? "" : fmt::format("{} processes with ", count),
      count_text(at::get_num_threads(), "thread"), options.precision,
      bytes_text(static_cast<double>(size.bytes)), size.num_parameters, "batch", "images/s",
      "median ms", "95 % ms", "memory");
  auto rows = Json::array();
  std::sort(options.batch_sizes.begin(), options.batch_sizes.end());
  for (const int64_t batch_size : options.batch_sizes) {
    Latency found = measure_together(
        *model, {.batch_size = batch_size, .seconds = options.seconds, .precision = precision},
        processes);
    if (program) found.bytes += static_cast<double>(size.bytes);  // Its model has no weights.
    lines << fmt::format("{:>8} {:>12.1f} {:>12.3f} {:>12.3f} {:>12}\n", batch_size,
                         found.images_per_second, found.median_ms, found.p95_ms,
                         bytes_text(found.bytes))
          << std::flush;
    rows.push_back({{"batch_size", batch_size},
                    {"images_per_second", found.images_per_second},
                    {"median_ms", found.median_ms},
                    {"p95_ms", found.p95_ms},
                    {"bytes", found.bytes},
                    {"passes", found.num_passes}});
  }
  if (!is_rank_zero) return;
  if (!options.file.empty()) write_figures(options, chip, rows, count);
  if (!options.json) return;
  const Json document = {{"checkpoint", checkpoint.folder.string()},
                         {"processor", chip},
                         {"device", options.device},
                         {"processes", count},
                         {"threads", at::get_num_threads()},
                         {"precision", options.precision},
                         {"parameters", size.num_parameters},
                         {"weight_bytes", size.bytes},
                         {"rows", rows}};
  std::cout << document.dump(2) << '\n';
}

/// Returns whether every row was measured.
bool run_benchmark(const BenchOptions& options) {
  const bench::Benchmark& benchmark = find(options.name);
  const bool alone = read_launch(process_environment()).is_single_process();
  if (options.name != "processes" && !alone) {
    fail_usage("bench: '{}' times one process; start one, or choose the benchmark 'processes'",
               options.name);
  }
  auto rows = Json::array();
  std::ostream& lines = options.json ? std::cerr : std::cout;
  if (alone) {  // Processes that a benchmark starts have no rows.
    lines << fmt::format("{:<28} {:>10} {:>10}     {:>7}  {:<8} {}\n", benchmark.name, "ours",
                         "baseline", "ratio", "goal", "what is compared");
  }
  bool measured = true;
  const bench::Report report(options.rows, [&](bench::NamedRow row) {
    row.row.description += "; " + bench::chip();
    measured = measured && row.error.empty();
    lines << to_text(row) << std::flush;
    rows.push_back(to_json(row));
  });
  benchmark.run(report);
  const bool may_be_left_out = options.rows.starts_with("gpu/") || report.known().empty();
  const bool left_out_all = may_be_left_out && !benchmark.skipped().empty();
  if (rows.empty() && alone && !left_out_all) {
    std::string name = options.rows;
    std::erase_if(name, [](char c) { return c == '*' || c == '?'; });
    fail_usage("bench: --rows: '{}' has no row like '{}'; {}", benchmark.name, options.rows,
               did_you_mean(name, report.known()));
  }
  if (const std::string skipped = benchmark.skipped(); !skipped.empty()) {
    lines << skipped << '\n';
  }
  if (!options.file.empty()) write_figures(options, bench::chip(), rows);
  if (options.json) std::cout << Json{{"rows", rows}}.dump(2) << '\n';
  return measured;
}

bool is_benchmark(const std::string& name) {
  const auto& all = bench::benchmarks();
  return std::any_of(all.begin(), all.end(), [&](const auto& known) { return known.name == name; });
}

/// A name that is none of the benchmarks' is a checkpoint where there is something or it has a '/'.
void run(const BenchOptions& options, const std::vector<CLI::Option*>& of_checkpoints,
         const CLI::Option& of_benchmarks, int& exit_code) {
  if (!options.file.empty()) check_folder(options.file);
  const bool path = options.name.find('/') != std::string::npos || path_exists(options.name);
  if (!is_benchmark(options.name) && path) {
    if (of_benchmarks.count() > 0) {
      fail_usage("bench: --rows is for a benchmark, not a checkpoint; leave it out");
    }
    const auto processes = init_process_mesh({}, options.device);
    return run_distributed("bench", processes, [&] { run_checkpoint(options, processes.get()); });
  }
  for (const CLI::Option* option : of_checkpoints) {
    if (option->count() == 0) continue;
    fail_usage("bench: {} is for a checkpoint, but '{}' is a benchmark; leave it out",
               option->get_name(), options.name);
  }
  exit_code = run_benchmark(options) ? 0 : 1;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto* verb =
      add_verb(app, "bench", "Time a network, or benchmark this program against plain ATen.",
               "bench checkpoints/first --batch-sizes 1,8");
  auto options = std::make_shared<BenchOptions>();
  add_checkpoint(*verb, "name", options->name, "; or a benchmark:\n" + names_and_descriptions(),
                 "CHECKPOINT|NAME");
  const CLI::Option* const rows =
      add_text(*verb, "--rows", options->rows, "PATTERN",
               "names of the benchmark's rows to measure, with * and ?: 'gpu/*'");
  add_text(*verb, "--write", options->file, "FILE",
           "file for the measurements with processor, commit and date, as in tests/bench/results/");
  verb->add_flag("--json", options->json, "print one JSON document; text goes to standard error");
  const std::vector<CLI::Option*> of_checkpoints = {
      verb->add_option("--batch-sizes", options->batch_sizes,
                       "numbers of images per forward pass: 1,8,32")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(batch_size())
          ->capture_default_str(),
      add_device(*verb, options->device),
      add_precision(*verb, options->precision, {"float32", "bfloat16", "int8"}),
      add_trust(*verb, options->trust),
      verb->add_option("--seconds", options->seconds,
                       "measured time in seconds for each batch size; 0: the fewest passes")
          ->check(number(0.0, 3600.0))
          ->capture_default_str()};
  for (CLI::Option* option : of_checkpoints) option->group("Options of a checkpoint");
  verb->callback([=, &exit_code] { run(*options, of_checkpoints, *rows, exit_code); });
}

}  // namespace moesaic::tools
