// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/terminal.h"

#include <ostream>

#include "base/support.h"

namespace moesaic {
namespace {

TEST(FileBuffer, EscapesAllButLinesAndTabs) {
  const test::TempDir folder;
  std::FILE* const file = std::fopen((folder / "out").c_str(), "w");
  ASSERT_NE(file, nullptr);
  FileBuffer buffer(file, /*is_terminal=*/true);
  std::ostream out(&buffer);
  const std::string name = "weight\x1b[31m";
  out << "\t" << name << ' ' << 3 << '\x1b' << '\n' << std::flush;
  EXPECT_TRUE(out.good());
  EXPECT_EQ(test::get(folder / "out"), "\tweight\\x1b[31m 3\\x1b\n");
  std::fclose(file);
}

TEST(FileBuffer, TellsWhatWasNotWritten) {
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  FileBuffer buffer(full, /*is_terminal=*/false);
  std::ostream out(&buffer);
  out << "a line" << std::flush;
  EXPECT_FALSE(out.good());
  EXPECT_EQ(buffer.error(), ENOSPC);
  std::fclose(full);
}

}  // namespace
}  // namespace moesaic
