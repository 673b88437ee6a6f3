// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "base/support.h"
#include "data/http_server.h"
#include "moesaic/import/vit/import.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// A server that has google/tiny, and its files.
class Hub : public ::testing::Test {
 protected:
  Hub() : endpoint_("HF_ENDPOINT", server_.url()) {}

  fs::path cache(const std::string& name) const { return folder_ / "data/checkpoints" / name; }

  test::TempDir folder_;
  test::HttpServer server_{{{"google/tiny/resolve/main/model.safetensors", {'w'}},
                            {"google/tiny/resolve/main/config.json", {'{', '}'}},
                            {"google/tiny/resolve/v2/model.safetensors", {'n'}},
                            {"google/bare/resolve/main/config.json", {'{', '}'}}}};
  test::ScopedEnv endpoint_, data_{"MOESAIC_DATA", (folder_ / "data").string()},
      proxy_{"no_proxy", "127.0.0.1"}, token_{"HF_TOKEN", std::nullopt};
};

TEST_F(Hub, ANetworkIsFetchedOnceWithWhatLiesBesideIt) {
  const fs::path folder = fetch_hub_model("hf://google/tiny");
  EXPECT_EQ(folder, cache("google/tiny"));
  EXPECT_THAT(test::names_in(folder), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(test::get(folder / "model.safetensors"), "w");
  const size_t requests = server_.requests().size();
  EXPECT_EQ(fetch_hub_model("hf://google/tiny/"), folder);
  EXPECT_EQ(server_.requests().size(), requests);
}

TEST_F(Hub, ARevisionHasAFolderOfItsOwn) {
  const fs::path folder = fetch_hub_model("hf://google/tiny@v2");
  EXPECT_EQ(folder, cache("google/tiny@v2"));
  EXPECT_EQ(test::get(folder / "model.safetensors"), "n");
}

TEST_F(Hub, WhatIsNotThereIsSaidInOneLine) {
  EXPECT_THAT(test::failure_of([] { fetch_hub_model("hf://google/bare"); }),
              AllOf(HasSubstr("/google/bare"), HasSubstr("404"),
                    HasSubstr("; or put model.safetensors, config.json and "),
                    EndsWith("by hand into " + cache("google/bare").string())));
  // What is put there by hand is taken.
  test::put(cache("google/bare") / "model.safetensors", "own");
  EXPECT_EQ(fetch_hub_model("hf://google/bare"), cache("google/bare"));
}

TEST_F(Hub, OtherAddressesAreRefusedAndNoTokenIsRepeated) {
  for (const char* address : {"hf://", "hf://tiny", "hf://google/tiny/folder", "hf://a b/c",
                              "https://huggingface.co/google/tiny", "hf://datasets/timm/tiny"}) {
    EXPECT_THAT(test::usage_of([&] { fetch_hub_model(address); }), HasSubstr("hf://"));
  }
  for (const char* address : {"hf://hf_s3cret@google/tiny", "https://me:hf_s3cret@host/x",
                              "https://host/x?token=hf_s3cret"}) {
    EXPECT_THAT(test::usage_of([&] { fetch_hub_model(address); }),
                AllOf(HasSubstr("token"), Not(HasSubstr("s3cret"))));
  }
  EXPECT_THAT(test::usage_of([] { fetch_hub_model("hf://google"); }),
              HasSubstr("'hf://google': the address of a network is hf://OWNER/NAME"));
  EXPECT_THAT(server_.requests(), IsEmpty());
  EXPECT_EQ(fetch_hub_model("folder/of mine"), fs::path("folder/of mine"));
}

}  // namespace
}  // namespace moesaic
