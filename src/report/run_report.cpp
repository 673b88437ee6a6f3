// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/train/run_folder.h"

namespace moesaic {
namespace {

/// Returns a value for a cell of a table; "-" for what is not there.
std::string cell_of(const Json& value) {
  if (value.is_null()) return "-";
  std::string text = value.is_number_float() ? fmt::format("{:.5g}", value.get<double>())
                     : value.is_string()     ? one_line(value.get<std::string>())
                                             : one_line(value.dump());
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

std::string cell_at(const Json& json, const char* pointer) {
  return cell_of(json.value(Json::json_pointer(pointer), Json()));
}

std::string recipe_section(const Json& config) {
  TextTable table({"phase", "kind", "data", "length", "batch", "optimizer", "lr"}, 4);
  for (const Json& phase : config.at("phases")) {
    const std::string steps = cell_at(phase, "/steps");
    table.add({cell_at(phase, "/name"), cell_at(phase, "/kind"), cell_at(phase, "/data"),
               steps != "-" ? steps + " steps" : cell_at(phase, "/epochs") + " epochs",
               cell_at(phase, "/batch_size"), cell_at(phase, "/optimizer/name"),
               cell_at(phase, "/optimizer/lr")});
  }
  return fmt::format(
      "## Recipe\n\nNetwork {}, seed {}, {}; [config.json](config.json) has all settings.\n\n{}\n",
      cell_at(config, "/model/name"), cell_at(config, "/seed"), cell_at(config, "/precision"),
      table.markdown());
}

/// Returns the last line of each phase and split, in the order of their first ones.
std::vector<Json> last_evaluations(const std::vector<Json>& lines) {
  std::vector<Json> last;
  for (const Json& line : lines) {
    if (line.value("kind", Json()) != "eval") continue;
    const auto same = std::ranges::find_if(last, [&](const Json& other) {
      return cell_at(other, "/phase") == cell_at(line, "/phase") &&
             cell_at(other, "/split") == cell_at(line, "/split");
    });
    same == last.end() ? last.push_back(line) : void(*same = line);
  }
  return last;
}

std::string results_section(const std::vector<Json>& evaluations) {
  std::vector<std::string> metrics;
  for (const Json& line : evaluations) {
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step" && !std::ranges::count(metrics, key)) {
        metrics.push_back(key);
      }
    }
  }
  std::vector<std::string> header = {"phase", "split", "step"};
  header.insert(header.end(), metrics.begin(), metrics.end());
  TextTable table(header, 2);
  for (const Json& line : evaluations) {
    std::vector<std::string> row;
    for (const std::string& key : header) row.push_back(cell_of(line.value(key, Json())));
    table.add(row);
  }
  return "## Results\n\n" + table.markdown() + "\n";
}

/// Returns "3: 12 %", an expert and its share of a uniform load.
std::string share_text(const std::vector<int64_t>& kept, const std::vector<double>& load,
                       size_t place) {
  const double share = 100.0 * load[place] * static_cast<double>(load.size());
  return fmt::format("{}: {:.3g} %", kept.at(place), share);
}

std::string routing_section(const Json& evaluation) {
  const Json layers = evaluation.value("routing", Json::array());
  if (layers.empty()) return "";
  TextTable table({"block", "experts", "rows per token", "least used expert", "most used expert"});
  for (const Json& layer : layers) {
    const auto kept = layer.at("kept").get<std::vector<int64_t>>();
    const auto load = layer.at("load").get<std::vector<double>>();
    if (load.empty() || kept.size() != load.size()) continue;
    const auto [least, most] = std::ranges::minmax_element(load);
    table.add({cell_at(layer, "/layer"), fmt::to_string(kept.size()),
               cell_at(layer, "/rows_per_token"),
               share_text(kept, load, static_cast<size_t>(least - load.begin())),
               share_text(kept, load, static_cast<size_t>(most - load.begin()))});
  }
  return fmt::format("## Routing\n\nOf phase {}, {}; 100 % is a uniform load.\n\n{}\n",
                     cell_at(evaluation, "/phase"), cell_at(evaluation, "/split"),
                     table.markdown());
}

std::string next_section(const fs::path& run, const std::string& name, const std::string& program,
                         bool has_experts) {
  const std::string folder = shell_quoted(run.string());
  const std::string network =
      shell_quoted((fs::exists(run / "best") ? run / "best" : run).string());
  std::string text = fmt::format("## How to go on\n\n    {0} eval {1}\n", program, network);
  if (has_experts) {
    text += fmt::format(
        "    {0} plot {1} --experts --out experts.png\n"
        "    {0} prune {2} --keep 0.5 --criterion load --out {3}\n",
        program, folder, network, shell_quoted(name + "-pruned"));
  }
  return text + fmt::format("    {} export {} --format pytorch --out {}\n", program, network,
                            shell_quoted(name + "-exported"));
}

}  // namespace

std::string run_report(const fs::path& run, const std::string& program) {
  const std::vector<Json> lines = metrics_lines(read_metrics(run));
  const Json config = RunFolder::started_config(run);
  if (!config.is_object() || !config.contains("phases")) {
    fail_usage("{}: no run, since its config.json is missing or has no phases", run.string());
  }
  const std::vector<Json> evaluations = last_evaluations(lines);
  const Json last = evaluations.empty() ? Json::object() : evaluations.back();
  const std::string name = cell_at(config, "/name");
  std::string text = fmt::format("# {}\n\n{}", name, recipe_section(config));
  if (!evaluations.empty()) text += results_section(evaluations);
  const std::string routing = routing_section(last);
  text += routing;
  if (fs::exists(run / "figure.svg")) text += "## Curves\n\n![loss and accuracy](figure.svg)\n\n";
  return text + next_section(run, name, program, !routing.empty());
}

void write_run_report(const fs::path& run, const std::string& program) {
  write_atomic(run / "report.md", run_report(run, program));
}

}  // namespace moesaic
