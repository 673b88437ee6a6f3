// SPDX-License-Identifier: Apache-2.0
// What the pages for people promise: a version that is the same everywhere, a front page that stays
// short, and links, files and tests that are there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "data/http_server.h"
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

TEST(Pages, TheTablesOfSpeedAreThoseOfTheResults) {
  const auto printed = run_command({"python3", source_path("tests/bench/table.py")});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  const std::string page = read_text(source_path("docs/performance.md"));
  int num_tables = 0;
  for (size_t at = 0, end; (end = printed.out.find("\n\n", at)) != std::string::npos;
       at = end + 2) {
    const std::string table = "\n\n" + printed.out.substr(at, end + 2 - at);
    EXPECT_NE(page.find(table), std::string::npos) << table;
    ++num_tables;
  }
  EXPECT_EQ(num_tables, 4);
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

class Links : public ProgramTest {};

TEST_F(Links, ToOtherServersAreCheckedByTheirAnswers) {
  test::HttpServer server({{"there", {'1'}}});
  server.answer_by([&](const std::string& request) {
    return request.starts_with("GET /moved ")
               ? "HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: " + server.url() +
                     "there\r\n\r\n"
           : request.starts_with("GET /busy ")
               ? std::string("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
               : "";
  });
  fs::create_directories(path("tools"));
  for (const char* tool : {"tools/pages.py", "tools/claims.py"}) {
    write(tool, read_text(source_path(tool)));
  }
  ASSERT_EQ(run_command({"git", "init", "--quiet", text_path("")}).exit_code, 0);
  const auto check = [&](const std::string& last) {
    const std::string url = server.url();
    write("README.md", "# Links\n\n[a](" + url + "there#part), [b](" + url + "moved) and\n<" + url +
                           last + ">.\n\n    " + url + "code\n");
    return run_command(
        {"env", "no_proxy=127.0.0.1", "python3", text_path("tools/pages.py"), "links"});
  };
  const auto good = check("there");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out, "links: 2 external, 0 dead, 0 not checked\n");
  const auto dead = check("gone");
  EXPECT_EQ(dead.exit_code, 1) << dead.err;
  EXPECT_EQ(dead.out, "README.md:4: " + server.url() +
                          "gone is dead: 404\nlinks: 3 external, 1 dead, 0 not checked\n");
  const auto busy = check("busy");
  EXPECT_EQ(busy.exit_code, 2) << busy.err;
  EXPECT_EQ(busy.out,
            "README.md:4: " + server.url() +
                "busy cannot be checked: 503\nlinks: 3 external, 0 dead, 1 not checked\n");
}

class PageCommands : public ProgramTest {};
class Claims : public ProgramTest {
 protected:
  /// What the check says of a page with this text, whose claims are those of a results file.
  ProgramResult check(const std::string& page) const {
    for (const char* folder : {"tools", "results", "docs"}) fs::create_directories(path(folder));
    for (const char* tool : {"pages.py", "claims.py"}) {
      write("tools/" + std::string(tool), read_text(source_path("tools/" + std::string(tool))));
    }
    write("results/a.json", R"({"rows": [
      {"name": "one", "metric": "accuracy", "measured": 92, "std": 1.4142, "runs": 2, "min": 91,
       "median": 92, "max": 93, "values": {"1": 91, "2": 93}},
      {"name": "two", "metric": "accuracy", "measured": 90.5, "std": 0.7071, "runs": 2, "min": 90,
       "median": 90.5, "max": 91, "values": {"1": 90, "2": 91}}]})");
    write("docs/claims.tsv",
          "page\tvalue\tfile\trow\tmetric\tfragment\n"
          "README.md\ttable\t-\t{}: accuracy\t-\t<!-- results: results/a.json -->\n"
          "README.md\t1.5±0.5\tresults/a.json\tone - two\taccuracy\tone leads by 1.5±0.5\n"
          "README.md\tleads\tresults/a.json\tone - two\taccuracy\tone leads\n");
    write("README.md", page);
    EXPECT_EQ(run_command({"git", "init", "--quiet", text_path("")}).exit_code, 0);
    return run_command({"python3", text_path("tools/pages.py"), "check"});
  }

  static constexpr const char* page_ =
      "# Measured\n\nRow one leads by 1.5±0.5 points.\n\n<!-- results: results/a.json -->\n"
      "| row | accuracy |\n|---|--:|\n| `one` | 92.0±1.4 |\n";
};

TEST_F(Claims, OfAPageAreThoseOfTheResultsFile) {
  const auto result = check(page_);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(Claims, OtherNumbersInATableAreNamed) {
  const auto result = check(std::string(page_) + "| `two` | 90.5±0.8 |\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "README.md:9: '| `two` | 90.5±0.8 |' should be '| `two` | 90.5±0.7 |'\n");
}

TEST_F(Claims, AWrongSignIsNamed) {
  const auto result = check(std::string(page_) + "| `two` | -90.5±0.7 (90.0 to 91.0) |\n");
  EXPECT_EQ(result.out,
            "README.md:9: '| `two` | -90.5±0.7 (90.0 to 91.0) |' should be '| `two` | 90.5±0.7 "
            "(90.0 to 91.0) |'\n");
  const auto bound = check(std::string(page_) + "| `two` | 90.5±0.7 (-90.0 to 91.0) |\n");
  EXPECT_EQ(bound.out,
            "README.md:9: '| `two` | 90.5±0.7 (-90.0 to 91.0) |' should be '| `two` | 90.5±0.7 "
            "(90.0 to 91.0) |'\n");
}

TEST_F(Claims, ASentenceThatIsNotThereIsNamed) {
  const auto result = check(std::regex_replace(std::string(page_), std::regex("1\\.5"), "1.6"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out,
            "README.md:3: docs/claims.tsv has 'one leads by 1.5±0.5'; "
            "nearest is 'Row one leads by 1.6±0.5 points.'\n");
}

TEST_F(Claims, AComparisonThatIsNotListedIsNamedWithTheNearest) {
  const auto result = check(std::string(page_) + "\nRow two leads by\nnothing.\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out,
            "README.md:10: docs/claims.tsv lacks 'Row two leads by nothing.'; "
            "nearest is 'one leads by 1.5±0.5'\n");
}

TEST_F(PageCommands, AreRunOrListedWithAReason) {
  fs::create_directories(path("pages"));
  const auto tried = run_command({"python3", source_path("tests/integration/page_commands.py"),
                                  MOESAIC_PROGRAM, text_path("pages")});
  EXPECT_EQ(tried.exit_code, 0) << tried.err;
  std::cout << tried.out;
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
