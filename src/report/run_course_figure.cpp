// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "moesaic/report/run_course_report.h"

namespace moesaic {
namespace {

// Colours are Okabe and Ito's, which colour-blind readers can tell apart.
constexpr std::string_view kCourseStyle = R"(
# gnuplot figure.gp draws figure.svg and figure.png from figure.tsv
data = 'figure.tsv'
set datafile separator tab
set encoding utf8
array color[8] = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#999999', \
  '#F0E442']
colour_of(i) = color[1 + (i - 1) % 8]
ink = '#333333'
set border 3 lc rgb '#666666' lw 0.8
set tics nomirror out scale 0.4 textcolor rgb ink
set grid ytics lt 1 lc rgb '#E2E2E2' lw 0.8
svg(width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced \
  font 'Helvetica,Arial,sans-serif,14' background rgb 'white'", width, height)
png(width, height) = sprintf("set terminal pngcairo size %d,%d enhanced \
  font 'DejaVu Sans,20' linewidth 2 pointscale 2 background rgb 'white'", 2 * width, 2 * height)
)";

constexpr std::string_view kEntropyScript = R"(
set xrange [0:last]
set xlabel 'updates' textcolor rgb ink
set ylabel 'dispatch entropy, nats' textcolor rgb ink
set yrange [0:*]
set tmargin 3
set key at graph 0, 1.03 left bottom horizontal Left reverse samplen 2.4 textcolor rgb ink
do for [name in 'figure.svg figure.png'] {
  eval (name eq 'figure.svg' ? svg(760, 420) : png(760, 420))
  set output name
  plot for [i=1:runs] data index i - 1 using 1:2 with lines lc rgb colour_of(i) lw 2 \
       title names[i]
}
)";

constexpr std::string_view kDispatchScript = R"(
set style data histograms
set style histogram rowstacked
set style fill solid 1.0 noborder
set boxwidth 0.75
set xtics 1 scale 0
set xlabel 'expert' textcolor rgb ink
set ylabel 'training examples' textcolor rgb ink
do for [name in 'figure.svg figure.png'] {
  eval (name eq 'figure.svg' ? svg(120 + 360 * runs, 380) : png(120 + 360 * runs, 380))
  set output name
  set multiplot layout 1,runs margins screen 0.09, screen 0.985, screen 0.16, screen 0.8 \
    spacing screen 0.08
  do for [r=1:runs] {
    set title names[r] textcolor rgb ink
    if (r == 1) {
      set key at screen 0.09, screen 0.99 left top horizontal Left reverse samplen 1 \
        textcolor rgb ink
    } else { unset key; unset ylabel }
    plot for [k=1:clusters] data index r - 1 using (column(1 + k)):xtic(1) lc rgb colour_of(k) \
         title sprintf('cluster %d', k)
  }
  unset multiplot
  set ylabel 'training examples' textcolor rgb ink
}
)";

constexpr std::string_view kProductScript = R"(
array panel[4] = ['filters, signals: max |<w, v_k>|', 'filters, centres: max |<w, c_k>|', \
  'router, signals: <θ, v_k>', 'router, centres: <θ, c_k>']
set xrange [0:last]
set xlabel 'updates' textcolor rgb ink
set key at screen 0.99, screen 0.995 right top horizontal Left reverse samplen 2 textcolor rgb ink
entry(p, e, k) = column(1 + ((p - 1) * experts + e - 1) * clusters + k)
do for [name in 'figure.svg figure.png'] {
  eval (name eq 'figure.svg' ? svg(960, 700) : png(960, 700))
  set output name
  set multiplot layout 2,2 margins screen 0.07, screen 0.97, screen 0.08, screen 0.9 \
    spacing screen 0.07, screen 0.13
  do for [p=1:4] {
    set title panel[p] textcolor rgb ink
    if (p > 1) { unset key }
    plot for [k=1:clusters] for [e=1:experts] data using 1:(entry(p, e, k)) with lines \
           lc rgb colour_of(k) lw 1.2 notitle, \
         for [k=1:clusters] NaN with lines lc rgb colour_of(k) lw 2 title sprintf('k = %d', k)
  }
  unset multiplot
  set key at screen 0.99, screen 0.995 right top horizontal Left reverse samplen 2 \
    textcolor rgb ink
}
)";

/// gnuplot doubles a quote inside single quotes; '_' would lower what follows.
std::string name_in_figure(const std::string& name) {
  std::string text = "'";
  for (const char c : name) text += c == '\'' ? "''" : c == '_' ? " " : std::string(1, c);
  return text + "'";
}

std::string names_in_figure(const RunCourseConfig& config) {
  std::string list;
  for (const RunCourseRow& row : config.rows) {
    list += (list.empty() ? "" : ", ") + name_in_figure(row.name);
  }
  return fmt::format("runs = {0}\narray names[{0}] = [{1}]\n", config.rows.size(), list);
}

/// Blocks are two empty lines apart.
std::string entropy_data(const std::vector<RunCourse>& courses) {
  std::string data;
  for (const RunCourse& course : courses) {
    data += data.empty() ? "" : "\n\n";
    data += "# updates\tentropy\n";
    for (const CoursePoint& point : course.points) {
      data += fmt::format("{}\t{:.5f}\n", point.step, point.entropy);
    }
  }
  return data;
}

std::string dispatch_data(const std::vector<RunCourse>& courses) {
  std::string data;
  for (const RunCourse& course : courses) {
    data += data.empty() ? "" : "\n\n";
    data += "# expert\texamples of each cluster\n";
    const auto& dispatch = course.points.back().dispatch;
    for (size_t e = 0; e < dispatch.front().size(); ++e) {
      data += fmt::format("{}", e + 1);
      for (const auto& cluster : dispatch) data += fmt::format("\t{}", cluster[e]);
      data += "\n";
    }
  }
  return data;
}

/// A line for each look: updates, then panel by panel, expert by expert, vector by vector.
std::string product_data(const RunCourse& course) {
  std::string data = "# updates\tproducts by panel, expert and vector\n";
  for (const CoursePoint& point : course.points) {
    data += fmt::format("{}", point.step);
    for (const auto* panel :
         {&point.expert_signal, &point.expert_centre, &point.router_signal, &point.router_centre}) {
      for (const auto& row : *panel) {
        for (const double product : row) data += fmt::format("\t{:.5f}", product);
      }
    }
    data += "\n";
  }
  return data;
}

}  // namespace

Figure run_course_figure(const RunCourseConfig& config, const std::vector<RunCourse>& courses) {
  const auto& dispatch = courses.front().points.front().dispatch;
  int64_t last = 1;
  for (const RunCourse& course : courses) last = std::max(last, course.steps);
  const std::string head = std::string(kCourseStyle) + names_in_figure(config) +
                           fmt::format("clusters = {}\nexperts = {}\nlast = {}\n", dispatch.size(),
                                       dispatch.front().size(), last);
  if (config.shows == "entropy") return {head + std::string(kEntropyScript), entropy_data(courses)};
  if (config.shows == "dispatch") {
    return {head + std::string(kDispatchScript), dispatch_data(courses)};
  }
  return {head + std::string(kProductScript), product_data(courses.front())};
}

}  // namespace moesaic
