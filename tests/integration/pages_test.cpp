// SPDX-License-Identifier: Apache-2.0
// What the pages for people promise: a version that is the same everywhere, a front page that stays
// short, and links, files and tests that are there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "integration/program.h"
#include "integration/readme.h"
#include "moesaic/base/file.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> pages() {
  const fs::path root = source_path(".");
  std::vector<fs::path> list = {root / "src/README.md", root / "tests/README.md",
                                root / "tests/fuzz/README.md"};
  for (const fs::path& folder : {root, root / "docs"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") list.push_back(entry.path());
    }
  }
  for (const auto& family : fs::directory_iterator(root / "models")) {
    if (fs::exists(family.path() / "README.md")) list.push_back(family.path() / "README.md");
  }
  return list;
}

/// The first group of every match, line by line.
std::vector<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (std::sregex_iterator it(line.begin(), line.end(), pattern), end; it != end; ++it) {
      found.push_back((*it)[1]);
    }
  }
  return found;
}

TEST(Pages, TheVersionIsTheSameEverywhere) {
  std::string version = read_text(source_path("VERSION"));
  ASSERT_TRUE(version.ends_with('\n'));
  version.pop_back();
  EXPECT_EQ(run_program({"--version"}).out, version + "\n");
  const auto has = [&](const char* file, const std::string& text) {
    EXPECT_NE(read_text(source_path(file)).find(text), std::string::npos) << file << ": " << text;
  };
  has("CITATION.cff", "\nversion: " + version + "\n");
  has("CHANGELOG.md", "\n## [" + version + "]");
}

TEST(Pages, TheFrontPageIsReadInTwoMinutes) {
  const std::string text = read_text(source_path("README.md"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 150);
}

TEST(Pages, TheTableOfSpeedsIsThatOfTheResults) {
  const auto table = run_command({"python3", source_path("tests/bench/table.py")});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(read_text(source_path("docs/performance.md")).find(table.out), std::string::npos)
      << table.out;
}

TEST(Pages, LinksLeadSomewhere) {
  const auto check = run_command({"python3", source_path("tools/pages.py"), "check"});
  EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
}

TEST(Pages, SettingsAreThoseOfTheProgram) {
  const auto page =
      run_command({"python3", source_path("tools/pages.py"), "settings", MOESAIC_PROGRAM});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_EQ(page.out, read_text(source_path("docs/settings.md")))
      << "write the page anew: tools/pages.py settings PROGRAM > docs/settings.md";
}

class PageCommands : public ProgramTest {};

TEST_F(PageCommands, AreRunOrListedWithAReason) {
  fs::create_directories(path("pages"));
  const auto tried = run_command({"python3", source_path("tests/integration/page_commands.py"),
                                  MOESAIC_PROGRAM, text_path("pages")});
  EXPECT_EQ(tried.exit_code, 0) << tried.out << tried.err;
}

TEST(Pages, FilesThatCommandsNameAreThere) {
  const std::regex file(R"((?:^|[\s`(/])((?:models|datasets|tools)/[\w./-]+\.(?:json|sh|py|txt)))");
  for (const fs::path& page : pages()) {
    for (const std::string& name : matches(read_text(page), file)) {
      if (name.starts_with("datasets/cache")) continue;
      EXPECT_TRUE(fs::exists(source_path(name))) << page << ": " << name;
    }
  }
}

TEST(Pages, TestsThatArePointedToAreThere) {
  std::string sources;
  for (const auto& entry : fs::recursive_directory_iterator(source_path("tests"))) {
    if (entry.path().string().ends_with("_test.cpp")) sources += read_text(entry.path());
  }
  std::erase_if(sources, [](unsigned char c) { return std::isspace(c); });
  const std::vector<std::string> names =
      matches(read_text(source_path("SECURITY.md")), std::regex("`([A-Z]\\w+\\.[A-Z]\\w+)`"));
  EXPECT_GT(names.size(), 50U);
  for (const std::string& name : names) {
    const size_t dot = name.find('.');
    const std::string told = "(" + name.substr(0, dot) + "," + name.substr(dot + 1) + ")";
    EXPECT_NE(sources.find(told), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace moesaic::testing
