// SPDX-License-Identifier: Apache-2.0
// The report.md of a run: its recipe, results, routing, and how to go on.
#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/train/run_folder.h"

namespace moesaic {
namespace {

/// Returns the value at a JSON pointer for a cell of a table; "-" for what is not there.
std::string cell_at(const Json& json, const std::string& pointer) {
  const Json value = json.value(Json::json_pointer(pointer), Json());
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.5g}", value.get<double>());
  std::string text = one_line(value.is_string() ? value.get<std::string>() : value.dump());
  std::replace(text.begin(), text.end(), '|', '/');  // It would end the cell.
  return text;
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
  std::vector<std::string> columns = {"phase", "split", "step"};
  for (const auto& [key, value] : evaluations.back().items()) {
    if (value.is_number() && key != "step") columns.push_back(key);
  }
  TextTable table(columns, 2);
  for (const Json& line : evaluations) {
    std::vector<std::string> row;
    for (const std::string& key : columns) row.push_back(cell_at(line, "/" + key));
    table.add(row);
  }
  return "## Results\n\n" + table.markdown() + "\n";
}

std::string routing_section(const Json& evaluation) {
  const Json layers = evaluation.value("routing", Json::array());
  if (layers.empty()) return "";
  TextTable table({"block", "experts", "rows per token", "least used expert", "most used expert"});
  for (const Json& layer : layers) {
    const auto load = layer.at("load").get<std::vector<double>>();
    if (load.empty()) continue;
    const auto [least, most] = std::ranges::minmax_element(load);
    const auto share = [&](auto place) {
      return fmt::format("{}: {:.3g} %",
                         layer.at("kept").at(static_cast<size_t>(place - load.begin())).dump(),
                         100.0 * *place * static_cast<double>(load.size()));
    };
    table.add({cell_at(layer, "/layer"), fmt::to_string(load.size()),
               cell_at(layer, "/rows_per_token"), share(least), share(most)});
  }
  return fmt::format("## Routing\n\nOf phase {}, {}; 100 % is a uniform load.\n\n{}\n",
                     cell_at(evaluation, "/phase"), cell_at(evaluation, "/split"),
                     table.markdown());
}

std::string next_section(const fs::path& run, const std::string& name, const std::string& program,
                         bool has_experts) {
  const fs::path network = fs::exists(run / "best") ? run / "best" : run;
  const char* const of_experts =
      "    {0} plot {2} --experts --out experts.png\n"
      "    {0} prune {1} --max-drop 0.01 --criterion reap --out {3}-pruned\n";
  return fmt::format(fmt::runtime("## Next steps\n\n    {0} eval {1}\n" +
                                  std::string(has_experts ? of_experts : "") +
                                  "    {0} export {1} --format pytorch --out {3}-exported\n"),
                     program, shell_quoted(network.string()), shell_quoted(run.string()), name);
}

}  // namespace

std::string run_report(const fs::path& run, const std::string& program) {
  const std::vector<Json> evaluations = last_evaluations(metrics_lines(read_metrics(run)));
  const Json config = RunFolder::started_config(run);
  if (!config.is_object() || !config.contains("phases")) {
    fail_usage("{}: no run, since its config.json is missing or has no phases", run.string());
  }
  const std::string name = cell_at(config, "/name");
  const std::string routing = evaluations.empty() ? "" : routing_section(evaluations.back());
  std::string text = fmt::format("# {}\n\n{}", name, recipe_section(config));
  if (!evaluations.empty()) text += results_section(evaluations) + routing;
  if (fs::exists(run / "figure.svg")) text += "## Curves\n\n![loss and accuracy](figure.svg)\n\n";
  return text + next_section(run, name, program, !routing.empty());
}

}  // namespace moesaic
