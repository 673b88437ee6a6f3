// SPDX-License-Identifier: Apache-2.0
#include "integration/readme.h"

#include <gtest/gtest.h>

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

void expect_shown(const std::string& page, const std::string& printed) {
  std::string text = "\n\n";
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) text += "    " + line + "\n";
  expect_on_page(page, text + "\n");
}

}  // namespace moesaic::testing
