// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// A hidden folder for files that go into `folder`, whose names messages show. It is removed on
/// destruction.
class ScratchDir {
 public:
  explicit ScratchDir(const fs::path& folder) : path_(unique_sibling(folder / ".")) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      const fs::path place = folder.empty() ? fs::current_path() : fs::absolute(folder);
      fail("{}: cannot write here: {}", place.string(), error.message());
    }
    lock_ = lock_folder(path_);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  UniqueFd lock_;
};

/// Returns ": " and the last line that gnuplot wrote, which says what was wrong, "" without one.
std::string reason(std::string said) {
  said.erase(said.find_last_not_of(" \n") + 1);
  return said.empty() ? "" : ": " + one_line(said.substr(said.rfind('\n') + 1));
}

/// Throws Error unless gnuplot drew the file to its end: on a full disk it says nothing and
/// succeeds.
void check_drawn(const fs::path& drawn, const fs::path& file) {
  if (!fs::exists(drawn) || fs::is_empty(drawn)) fail("{}: gnuplot drew nothing", file.string());
  sync_path(drawn);
  std::string text = read_text(drawn);
  text.erase(text.find_last_not_of('\n') + 1);
  const bool whole = file.extension() == ".png" ? text.ends_with("IEND\xAE\x42\x60\x82")
                                                : text.ends_with("</svg>");
  if (!whole) {
    fail("{}: gnuplot could not write the whole figure; free some space on the disk",
         file.string());
  }
}

/// Draws `files` from the script and its data, and moves all of them to `folder`, or none if one
/// cannot be made.
void draw_in(const fs::path& folder, const std::string& stem, const Figure& figure,
             std::vector<std::string> files) {
  const ScratchDir scratch_dir(folder);
  const std::string script = stem + ".gp", data = stem + ".tsv";
  try {
    write_atomic(scratch_dir.path() / script, figure.script);
    write_atomic(scratch_dir.path() / data, figure.data);
  } catch (const IoError& error) {
    fail("{}: not drawn: {}", (folder / files[0]).string(), error.what());
  }
  // gnuplot warns of entries of a key that have no points and of fonts that a machine lacks. That
  // is nothing to a user whose figure was drawn. In a locale without UTF-8 it could not show some
  // characters.
  std::string said;
  const int status =
      run_with_input({"gnuplot"}, figure.script, {"LC_ALL=C.UTF-8"}, scratch_dir.path(), &said);
  if (status != 0) {
    fail("{}: gnuplot failed with status {}{}", (folder / files[0]).string(), status, reason(said));
  }
  for (const std::string& file : files) check_drawn(scratch_dir.path() / file, folder / file);
  files.insert(files.end(), {script, data});
  for (const std::string& file : files) {
    std::error_code error;
    fs::rename(scratch_dir.path() / file, folder / file, error);
    if (error) fail("{}: cannot rename into place: {}", (folder / file).string(), error.message());
  }
}

}  // namespace

std::string gnuplot_quoted(const std::string& text) {
  std::string result = "'";
  // A line break would end the string, and the rest would run as commands.
  for (const char c : one_line(text, text.size())) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

void check_can_write(const fs::path& folder) {
  const ScratchDir can_write(folder);
}

void check_can_draw(const fs::path& folder) {
  if (find_program("gnuplot").empty()) {
    fail(
        "gnuplot: no such program on PATH; figures are drawn by it: install it, e.g. gnuplot-nox "
        "of Debian");
  }
  check_can_write(folder);
}

void check_new_figure(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the figure's name must end in .png or .svg, found '{}'", what, file.string());
  }
  for (const fs::path& path :
       {file, fs::path(file).replace_extension(".gp"), fs::path(file).replace_extension(".tsv")}) {
    check_new_file(path, what);
  }
  check_can_draw(file.parent_path());
}

void draw_figure(const fs::path& folder, const Figure& figure, const std::string& stem) {
  draw_in(folder, stem, figure, {stem + ".svg", stem + ".png"});
}

void draw_figure_file(const fs::path& file, const Figure& figure) {
  draw_in(file.parent_path(), file.stem().string(), figure, {file.filename().string()});
}

}  // namespace moesaic
