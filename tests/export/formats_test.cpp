// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include <gmock/gmock.h>

#include "base/support.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExportFormats, AreFoundByName) {
  EXPECT_THAT(export_formats().names(), ElementsAre("safetensors", "torchscript", "vmoe"));
  for (const auto& [name, format] : export_formats().entries()) {
    EXPECT_FALSE(format.meaning.empty() || format.out.empty()) << name;
    EXPECT_EQ(format.shards, name == "vmoe");
  }
  EXPECT_THAT(test::usage_of([] { export_formats().at("torchscrpt", "export"); }),
              AllOf(HasSubstr("export: unknown format 'torchscrpt'"), HasSubstr("torchscript")));
}

TEST(ExportFormats, RefuseAPlaceThatIsTaken) {
  const test::TempDir folder;
  test::put(folder / "there", "x");
  test::put(folder / "there.safetensors", "x");
  test::put(folder / "prefix.index", "x");
  const auto refusal = [&](const char* format, const char* out) {
    return test::usage_of([&] { export_formats().at(format).check_out(folder / out); });
  };
  EXPECT_THAT(refusal("torchscript", "there"), HasSubstr("--out"));
  EXPECT_THAT(refusal("safetensors", "there.safetensors"), HasSubstr("--out"));
  EXPECT_THAT(refusal("safetensors", "there"), HasSubstr("--out"));
  EXPECT_THAT(refusal("vmoe", "prefix"), HasSubstr("--out"));
  for (const auto& [name, format] : export_formats().entries()) {
    EXPECT_NO_THROW(format.check_out(folder / "new")) << name;
  }
}

}  // namespace
}  // namespace moesaic
