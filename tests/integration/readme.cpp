// SPDX-License-Identifier: Apache-2.0
#include "integration/readme.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "moesaic/base/file.h"

namespace moesaic::testing {
namespace {

void expect_on_page(const std::string& page, const std::string& text) {
  const bool found = read_text(source_path(page)).find(text) != std::string::npos;
  EXPECT_TRUE(found) << page << " has no\n" << text;
}

}  // namespace

std::string source_path(const std::string& name) {
  return (std::filesystem::path(MOESAIC_TEST_SOURCE_DIR) / name).string();
}

void expect_quoted(const std::string& page, const std::string& name, const std::string& language,
                   const std::string& first) {
  const std::string code = read_text(source_path(name));
  const size_t begin = code.find("\n" + first);
  ASSERT_NE(begin, std::string::npos) << name << " has no line that begins with " << first;
  expect_on_page(page, "```" + language + code.substr(begin) + "```\n");
}

void expect_excerpt(const std::string& page, const std::string& name, const std::string& language,
                    const std::string& first, const std::string& last) {
  std::istringstream lines(read_text(source_path(name)));
  std::string block;
  size_t indent = std::string::npos;
  for (std::string line; std::getline(lines, line);) {
    const size_t start = std::min(line.find_first_not_of(' '), line.size());
    if (indent == std::string::npos && line.compare(start, first.size(), first) == 0) {
      indent = start;
    }
    if (indent == std::string::npos) continue;
    block += line.substr(std::min(indent, line.size())) + "\n";
    if (line.compare(start, last.size(), last) == 0) {
      expect_on_page(page, "```" + language + "\n" + block + "```\n");
      return;
    }
  }
  ADD_FAILURE() << name << " has no lines from " << first << " to " << last;
}

void expect_shown(const std::string& page, const std::string& printed) {
  std::string text = "\n\n";
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) text += "    " + line + "\n";
  expect_on_page(page, text + "\n");
}

}  // namespace moesaic::testing
