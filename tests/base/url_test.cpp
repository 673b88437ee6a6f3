// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/url.h"

#include <gtest/gtest.h>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

TEST(Url, SecretsAreUsersAndQueriesWithTokens) {
  for (const char* url : {"https://u:p@x.y/a", "https://u@x.y", "u@x.y/a", "https://x.y/a?Token=1",
                          "https://x.y/a?b=1&api_key=2", "https://x.y/a?key=2"}) {
    EXPECT_TRUE(has_secret(url)) << url;
  }
  for (const char* url : {"https://x.y/a@b", "https://x.y/a?b=1", "hf://datasets/owner/name@main/a",
                          "https://x.y/token", ""}) {
    EXPECT_FALSE(has_secret(url)) << url;
  }
}

TEST(Url, MessagesShowNoSecrets) {
  EXPECT_EQ(abridged("'https://u:SECRET@x.y/a?b=1': no such file"),
            "'https://...@x.y/a?b=1': no such file");
  EXPECT_EQ(abridged("'https://x.y/a.jpg?b=1&token=SECRET': no such file; try https://x.y/?c=1"),
            "'https://x.y/a.jpg?...': no such file; try https://x.y/?c=1");
  EXPECT_EQ(abridged("who@x.y wrote a?token=1"), "who@x.y wrote a?token=1");
}

}  // namespace
}  // namespace moesaic
