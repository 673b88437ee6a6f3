// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/path.h"

#include <gmock/gmock.h>

#include "base/support.h"

namespace moesaic {
namespace {

TEST(Resources, PrefersTheEnvironment) {
  const test::TempDir folder;
  const test::ScopedEnv home("MOESAIC_HOME", folder.path().string());
  EXPECT_EQ(resource_root(), folder.path());
  EXPECT_EQ(resource("datasets/x.json"), folder / "datasets/x.json");
}

TEST(Resources, RefusesAnEnvironmentThatLeadsNowhere) {
  const test::TempDir folder;
  const std::string none = (folder / "none").string();
  const test::ScopedEnv home("MOESAIC_HOME", none);
  EXPECT_EQ(test::usage_of([] { resource_root(); }), "MOESAIC_HOME=" + none + ": no such folder");
}

TEST(Resources, FallsBackToTheSourceTree) {
  for (const std::optional<std::string>& value : {std::optional<std::string>(), {""}}) {
    const test::ScopedEnv home("MOESAIC_HOME", value);
    EXPECT_EQ(resource_root(), MOESAIC_TEST_SOURCE_DIR);
    EXPECT_TRUE(std::filesystem::exists(resource("datasets")));
  }
}

}  // namespace
}  // namespace moesaic
