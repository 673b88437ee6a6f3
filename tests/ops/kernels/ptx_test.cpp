// SPDX-License-Identifier: Apache-2.0
// What nvcc makes of the kernels that move rows: rows of two bytes are stored in 16 bytes at once.
// nvcc 13 splits the assignment of a struct into four stores of 4 bytes, which no result shows.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

fs::path nvcc() {
  const fs::path usual = "/usr/local/cuda/bin/nvcc";
  const fs::path found = find_program("nvcc");
  return found.empty() && fs::exists(usual) ? usual : found;
}

/// Returns the bodies of the kernels of a .cu file in PTX, by mangled name.
std::map<std::string, std::string> kernels_of(const std::string& file) {
  const test::TempDir folder;
  const fs::path root = MOESAIC_TEST_SOURCE_DIR, ptx = folder / "kernels.ptx";
  const int status = run_with_input({nvcc(), "-ptx", "-std=c++17", "-arch=compute_80", "-I",
                                     root / "include", "-o", ptx, root / "src/ops/cuda" / file},
                                    "");
  EXPECT_EQ(status, 0) << "nvcc cannot compile " << file;
  std::map<std::string, std::string> kernels;
  std::istringstream text(read_text(ptx));
  std::string name;
  for (std::string line; std::getline(text, line);) {
    if (const auto at = line.find(".entry "); at != std::string::npos) {
      name = line.substr(at + 7, line.find('(') - at - 7);
    }
    if (!name.empty()) kernels[name] += line + '\n';
  }
  return kernels;
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

/// Checks the kernel `name` for eight numbers of two bytes at once, in each of its instantiations.
void expect_wide_stores(const std::map<std::string, std::string>& kernels,
                        const std::string& name) {
  const std::regex wide(name + "INS[0-9]*_(8BFloat16|4Half)ELi8E");
  int seen = 0;
  for (const auto& [mangled, body] : kernels) {
    if (!std::regex_search(mangled, wide)) continue;
    ++seen;
    EXPECT_GT(count(body, "st.global.wb.v4.u32") + count(body, "st.global.v4"), 0u) << mangled;
    // Sums in float32 are stored one by one (.f32, and .u32 where CombineBackward zeros them).
    for (const std::string part :
         {"st.global.u16", "st.global.u32", "st.global.u64", "st.global.v2"}) {
      if (name == "CombineBackward" && part == "st.global.u32") continue;
      EXPECT_EQ(count(body, part), 0u) << mangled << " stores rows by " << part;
    }
  }
  EXPECT_GE(seen, 2) << name;
}

/// The kernels of rows, which nvcc compiles once for all tests.
class Ptx : public ::testing::Test {
 protected:
  void SetUp() override {
    if (nvcc().empty()) GTEST_SKIP() << "no nvcc";
  }
  static const std::map<std::string, std::string>& passes() {
    static const auto kernels = kernels_of("expert_rows.cu");
    return kernels;
  }
};

TEST_F(Ptx, RowsOfTwoBytesAreStoredInSixteenBytes) {
  for (const char* name : {"DispatchRows", "SumRows", "CombineBackward", "ActivateRows",
                           "DifferentiateRows", "ClearRows"}) {
    expect_wide_stores(passes(), name);
  }
}

/// GELU by exp() and IEEE division takes as long as the memory of its rows.
TEST_F(Ptx, RowsOfTwoBytesTakeTheFastGelu) {
  constexpr int kGeluTanh = 1;
  int fast = 0, exact = 0;
  for (const auto& [name, body] : passes()) {
    const bool gelu =
        name.find("ActivateRows") != std::string::npos &&
        name.find("ActivationE" + std::to_string(kGeluTanh) + "E") != std::string::npos;
    if (!gelu) continue;
    const bool two_bytes =
        name.find("8BFloat16") != std::string::npos || name.find("4Half") != std::string::npos;
    (two_bytes ? fast : exact) += 1;
    EXPECT_EQ(count(body, "div.approx.f32") > 0, two_bytes) << name;
    EXPECT_EQ(count(body, "rcp.rn") > 0, !two_bytes) << name;
  }
  EXPECT_GE(fast, 4);
  EXPECT_GE(exact, 4);
}

}  // namespace
}  // namespace moesaic
