// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// A hidden folder beside the figure, gone with the object.
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

/// gnuplot doubles a quote inside single quotes.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

}  // namespace

void draw_figure(const fs::path& folder, const Figure& figure) {
  write_atomic(folder / "figure.gp", figure.script);
  write_atomic(folder / "figure.tsv", figure.data);
  const Workshop workshop(folder);
  fs::copy_file(folder / "figure.tsv", workshop.path() / "figure.tsv");
  const std::string script = "cd " + quoted(workshop.path().string()) + "\n" + figure.script;
  // In a locale without UTF-8 it warns of characters that it cannot show.
  const int status = run_with_input({"gnuplot"}, script, {"LC_ALL=C.UTF-8"});
  if (status != 0) {
    fail("{}: gnuplot failed with status {}", (folder / "figure.gp").string(), status);
  }
  for (const char* picture : {"figure.svg", "figure.png"}) {
    const fs::path drawn = workshop.path() / picture;
    if (!fs::exists(drawn) || fs::is_empty(drawn)) {
      fail("{}: gnuplot drew no {}", (folder / "figure.gp").string(), picture);
    }
    fs::rename(drawn, folder / picture);
  }
}

}  // namespace moesaic
