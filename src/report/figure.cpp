// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include <algorithm>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// A hidden folder beside the figure, removed on destruction.
class Workshop {
 public:
  explicit Workshop(const fs::path& folder) : path_(unique_sibling(folder / "figure")) {
    fs::create_directories(path_);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Draws `files` from the script and its data, and moves all of them beside each other, or none if
/// a file cannot be written. If gnuplot rejects the script, script and data are kept.
void draw_beside(const fs::path& script_path, const fs::path& data_path, const Figure& figure,
                 const std::vector<std::string>& files) {
  const fs::path folder = script_path.parent_path();
  const Workshop workshop(folder);
  write_atomic(workshop.path() / script_path.filename(), figure.script);
  write_atomic(workshop.path() / data_path.filename(), figure.data);
  const std::string script =
      "cd " + gnuplot_quoted(workshop.path().string()) + "\n" + figure.script;
  // In a locale without UTF-8, gnuplot warns of characters that it cannot show.
  const int status = run_with_input({"gnuplot"}, script, {"LC_ALL=C.UTF-8"});
  const auto bring = [&](const std::string& name) {
    fs::rename(workshop.path() / name, folder / name);
  };
  const std::vector<std::string> sources = {script_path.filename().string(),
                                            data_path.filename().string()};
  if (status != 0) {
    std::for_each(sources.begin(), sources.end(), bring);
    fail("{}: gnuplot failed with status {}", script_path.string(), status);
  }
  for (const std::string& file : files) {
    const fs::path drawn = workshop.path() / file;
    if (!fs::exists(drawn) || fs::is_empty(drawn)) {
      fail("{}: gnuplot drew no {}", script_path.string(), file);
    }
  }
  std::for_each(sources.begin(), sources.end(), bring);
  std::for_each(files.begin(), files.end(), bring);
}

}  // namespace

std::string gnuplot_quoted(const std::string& text) {
  std::string result = "'";
  // A line break would end the string, and the rest would run as commands.
  for (const char c : one_line(text, text.size())) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

fs::path script_beside(const fs::path& file) {
  return fs::path(file).replace_extension(".gp");
}

fs::path data_beside(const fs::path& file) {
  return fs::path(file).replace_extension(".tsv");
}

void draw_figure(const fs::path& folder, const Figure& figure, const std::string& stem) {
  draw_beside(folder / (stem + ".gp"), folder / (stem + ".tsv"), figure,
              {stem + ".svg", stem + ".png"});
}

void draw_figure_file(const fs::path& file, const Figure& figure) {
  draw_beside(script_beside(file), data_beside(file), figure, {file.filename().string()});
}

}  // namespace moesaic
