// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_table_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "report_text.h"

namespace moesaic {
namespace {

/// 0 is at the top: rows are read downwards.
constexpr std::string_view kRunTableScript = R"(
# gnuplot figure.gp draws figure.svg and figure.png from figure.tsv
data = 'figure.tsv'
set datafile separator tab
set encoding utf8
set datafile missing '-'
ink = '#333333'
set border 3 lc rgb '#666666' lw 0.8
set tics nomirror out scale 0.4 textcolor rgb ink
set grid xtics lt 1 lc rgb '#E2E2E2' lw 0.8
set xlabel 'test accuracy, %' textcolor rgb ink
set xrange [*:* < 101]
set key at graph 0, 1.02 left bottom horizontal Left reverse samplen 1.5 textcolor rgb ink

do for [name in 'figure.svg figure.png'] {
  if (name eq 'figure.svg') {
    set terminal svg size 860,110 + 24 * rows dynamic enhanced \
      font 'Helvetica,Arial,sans-serif,14' background rgb 'white'
  } else {
    set terminal pngcairo size 1720,220 + 48 * rows enhanced font 'DejaVu Sans,20' linewidth 2 \
      pointscale 2 background rgb 'white'
  }
  set output name
  set lmargin screen 0.3
  set tmargin 4
  set yrange [rows - 0.3:-0.7]
  plot data using 3:($1 - 0.12):4:ytic(stringcolumn(2)) with xerrorbars lc rgb '#0072B2' lw 2 pt 7 \
         ps 0.7 title 'measured, mean and spread of the runs')";

constexpr std::string_view kPaperSeries = R"(, \
       data using 5:($1 + 0.16):6 with xerrorbars lc rgb '#D55E00' lw 2 pt 4 ps 0.8 \
         title 'the paper''s')";

std::string number_or_gap(const std::optional<double>& value) {
  return value ? fmt::format("{:.4f}", *value) : "-";
}

}  // namespace

std::string run_table_markdown(const Experiment& experiment, const Results& results) {
  return fmt::format(
      "# {}\n\n{}\n\n{} Made by `{}` in {:.0f} s.\n\n![Measured and the paper's](figure.svg)\n\n"
      "Mean and standard deviation over the runs, which differ in their seeds; \"-\" where the "
      "paper has no value. Accuracy in %, entropy in nats.\n\n{}",
      experiment.name, experiment.description, scale_text(experiment), table_command(experiment),
      results.seconds, pairs_table(results).markdown());
}

std::string run_table_summary(const Experiment& experiment, const Results& results,
                              const std::filesystem::path& out) {
  return fmt::format(
      "{}, scale {}, {:.0f} s\n\n{}\nfigure   {}, figure.png\nreport   {}\nresults  {}\n",
      experiment.name, scale_name(experiment.scale), results.seconds, pairs_table(results).text(),
      (out / "figure.svg").string(), (out / "report.md").string(), (out / "results.json").string());
}

Figure run_table_figure(const Results& results) {
  std::string data = "# place\trow\tmeasured\tstd\tpaper\tpaper std\n";
  int64_t place = 0;
  bool paper = false;
  for (const ResultRow& row : results.rows) {
    if (row.metric != "test_accuracy") continue;
    // The spread of one number is 0.
    const auto spread = [](const std::optional<double>& value, const std::optional<double>& std) {
      return value ? std::optional(std.value_or(0.0)) : std::nullopt;
    };
    paper = paper || row.paper;
    std::string name = row.name;
    std::replace(name.begin(), name.end(), '_', ' ');
    data += fmt::format("{}\t{}\t{:.4f}\t{}\t{}\t{}\n", place++, name, row.measured,
                        number_or_gap(row.std.value_or(0.0)), number_or_gap(row.paper),
                        number_or_gap(spread(row.paper, row.paper_std)));
  }
  return {fmt::format("rows = {}{}{}\n}}\n", place, kRunTableScript, paper ? kPaperSeries : ""),
          data};
}

}  // namespace moesaic
