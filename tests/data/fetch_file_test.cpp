// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/fetch_file.h"

#include "base/support.h"
#include "data/http_server.h"
#include "formats/bytes.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::HttpServer;
using test::said_by;
using test::ScopedEnv;
using test::usage_of;
using ::testing::SizeIs;

constexpr const char* kSha256OfAbc =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// An answer with the body "abc" unless `head` has another length.
std::string answer(const std::string& status, const std::string& head = "",
                   const std::string& body = "abc") {
  const bool sized = head.find("Content-Length") != std::string::npos;
  return "HTTP/1.1 " + status + "\r\nConnection: close\r\n" + head +
         (sized ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" + body;
}

class FetchFile : public ::testing::Test {
 protected:
  FetchFile()
      : proxy_("no_proxy", "127.0.0.1"),
        token_("HF_TOKEN", std::nullopt),
        endpoint_("HF_ENDPOINT", std::nullopt) {
    for (int i = 0; i < 100; ++i) bytes_.push_back(static_cast<uint8_t>(i));
  }

  FetchRequest request(const std::string& url) {
    return {.url = url, .path = place(), .pause = [this](std::chrono::milliseconds time) {
              seconds_.push_back(time.count() / 1000);
            }};
  }
  test::fs::path place() const { return folder_.path() / "new" / "f"; }
  std::string error(const FetchRequest& request) {
    std::string text;
    said_ = said_by([&] { text = failure_of([&] { fetch_file(request); }); });
    EXPECT_FALSE(test::fs::exists(place()));
    return text;
  }
  void fetch(const FetchRequest& request) {
    said_ = said_by([&] { fetch_file(request); });
  }

  ScopedEnv proxy_, token_, endpoint_;
  test::TempDir folder_;
  std::vector<uint8_t> bytes_;
  std::vector<int64_t> seconds_;  ///< Of the pauses.
  std::string said_;
};

TEST_F(FetchFile, PutsItInPlaceOnce) {
  HttpServer server({{"f", {'a', 'b', 'c'}}});
  FetchRequest wanted = request(server.url() + "f");
  wanted.size = 3;
  wanted.sha256 = kSha256OfAbc;
  fetch(wanted);
  fetch(wanted);
  EXPECT_EQ(test::get(place()), "abc");
  EXPECT_THAT(server.requests(), SizeIs(1));
  test::write_file(place(), std::string("abd"));
  fetch(wanted);
  EXPECT_EQ(test::get(place()), "abc");
  EXPECT_EQ(test::get(place().parent_path() / "f.old"), "abd");
}

TEST_F(FetchFile, ATokenStaysWithItsHost) {
  HttpServer other({}), server({});
  std::vector<std::string> there, here;
  other.answer_by([&](const std::string& asked) {
    there.push_back(asked);
    return answer("200 OK");
  });
  server.answer_by([&](const std::string& asked) {
    here.push_back(asked);
    const bool first = here.size() == 1;
    return answer("302 Found", "Location: " + (first ? "/again" : other.url() + "x") + "\r\n", "");
  });
  const ScopedEnv token("MY_TOKEN", "abc123");
  FetchRequest wanted = request(server.url() + "f");
  wanted.token_env = "MY_TOKEN";
  fetch(wanted);
  EXPECT_EQ(test::get(place()), "abc");
  ASSERT_THAT(here, SizeIs(2));
  for (const std::string& asked : here) {
    EXPECT_THAT(asked, HasSubstr("Authorization: Bearer abc123\r\n"));
  }
  ASSERT_THAT(there, SizeIs(1));
  EXPECT_THAT(there[0], AllOf(Not(HasSubstr("abc123")), Not(HasSubstr("Authorization"))));
}

TEST_F(FetchFile, ARefusalNamesTheVariableAndNeverTheToken) {
  HttpServer server({});
  std::string asked;
  server.answer_by([&](const std::string& text) {
    asked = text;
    return answer("401 Unauthorized", "WWW-Authenticate: Bearer\r\n");
  });
  const ScopedEnv endpoint("HF_ENDPOINT", server.url());
  const FetchRequest wanted = request("hf://owner/name@v2/folder/model.bin");
  EXPECT_THAT(error(wanted),
              AllOf(HasSubstr("401"), HasSubstr("; environment variable HF_TOKEN may hold a")));
  EXPECT_THAT(asked, StartsWith("GET /owner/name/resolve/v2/folder/model.bin "));
  EXPECT_THAT(asked, Not(HasSubstr("Authorization")));
  const ScopedEnv token("HF_TOKEN", "abc123");
  const std::string refused = error(wanted);
  EXPECT_THAT(asked, HasSubstr("Authorization: Bearer abc123\r\n"));
  EXPECT_THAT(refused, HasSubstr("; the token in HF_TOKEN is refused"));
  EXPECT_THAT(refused + said_, Not(HasSubstr("abc123")));
  EXPECT_THAT(seconds_, IsEmpty());
  const ScopedEnv split("HF_TOKEN", "abc123\r\nHost: evil");
  EXPECT_THAT(usage_of([&] { fetch_file(wanted); }),
              AllOf(HasSubstr("HF_TOKEN: it holds a blank"), Not(HasSubstr("evil"))));
}

TEST_F(FetchFile, WaitsForAServerThatIsBusy) {
  HttpServer server({{"f", bytes_}});
  std::vector<std::string> answers = {answer("429 Too Many Requests", "Retry-After: 7\r\n"),
                                      answer("503 Service Unavailable"),
                                      answer("500 Internal Server Error", "Retry-After: 0\r\n")};
  size_t next = 0;
  server.answer_by(
      [&](const std::string&) { return next < answers.size() ? answers[next++] : ""; });
  fetch(request(server.url() + "f"));
  EXPECT_EQ(test::read_file(place()), bytes_);
  EXPECT_THAT(seconds_, ElementsAre(7, 2, 4));
  EXPECT_THAT(said_, HasSubstr("429; retrying in 7 s"));
}

TEST_F(FetchFile, GivesUpInTheEnd) {
  HttpServer server({});
  std::string head;
  server.answer_by([&](const std::string&) { return answer("502 Bad Gateway", head); });
  EXPECT_THAT(error(request(server.url() + "f")), HasSubstr("502"));
  EXPECT_THAT(seconds_, ElementsAre(1, 2, 4, 8, 16));
  head = "Retry-After: 9000\r\n";
  EXPECT_THAT(error(request(server.url() + "f")), HasSubstr("asks to wait for 9000 s"));
  EXPECT_THAT(seconds_, SizeIs(5));
}

TEST_F(FetchFile, GoesOnWhereAConnectionBroke) {
  HttpServer server({{"f", bytes_}});
  server.cut_after(40);
  fetch(request(server.url() + "f"));
  EXPECT_EQ(test::read_file(place()), bytes_);
  EXPECT_THAT(server.requests(), ElementsAre("f 0", "f 40", "f 80"));
}

TEST_F(FetchFile, StartsOverWhereTheServerKnowsNoRanges) {
  HttpServer server({{"f", bytes_}}, HttpServer::Ranges::ignored);
  server.cut_after(40);
  int answers = 0;
  server.before_answers([&] {
    if (++answers == 2) server.cut_after(SIZE_MAX);
  });
  fetch(request(server.url() + "f"));
  EXPECT_EQ(test::read_file(place()), bytes_);
  EXPECT_THAT(server.requests(), ElementsAre("f 0", "f 40", "f 0"));
}

TEST_F(FetchFile, ALongerPartOfAnotherFileIsNotTaken) {
  HttpServer server({{"f", bytes_}});
  test::write_file(place().parent_path() / ".f.moesaic.part", std::vector<uint8_t>(200, 7));
  fetch(request(server.url() + "f"));
  EXPECT_EQ(test::read_file(place()), bytes_);
  EXPECT_THAT(server.requests(), ElementsAre("f 200", "f 0"));
}

TEST_F(FetchFile, FindsLengthsThatAreNotTrue) {
  HttpServer server({});
  std::string head;
  server.answer_by([&](const std::string&) { return answer("200 OK", head); });
  FetchRequest wanted = request(server.url() + "f");
  wanted.size = 3;
  head = "Content-Length: 20\r\n";
  EXPECT_THAT(error(wanted), HasSubstr("the server offers 20 bytes, expected 3"));
  head = "Content-Length: 2\r\n";
  EXPECT_THAT(error(wanted), HasSubstr("the server offers 2 bytes, expected 3"));
  wanted.size = 0;
  head = std::string("X-Linked-Size: 4\r\nX-Linked-ETag: \"") + kSha256OfAbc + "\"\r\n";
  EXPECT_THAT(error(wanted), HasSubstr("3 bytes, expected 4"));
}

TEST_F(FetchFile, ComparesTheHashThatAServerTells) {
  HttpServer server({});
  std::string head;
  server.answer_by([&](const std::string&) { return answer("200 OK", head); });
  const FetchRequest wanted = request(server.url() + "f");
  const std::string other(64, '0');
  head = "X-Linked-ETag: \"" + other + "\"\r\n";
  EXPECT_THAT(error(wanted), HasSubstr("SHA-256 is ba7816bf"));
  head = "x-goog-hash: crc32c=AAAAAA==\r\nx-goog-hash: md5=kAFQmDzST7DWlj99KOF/cw==\r\n";
  EXPECT_THAT(error(wanted), HasSubstr("MD5 is 900150983cd24fb0d6963f7d28e17f72, expected 9001"));
  head = "x-goog-hash: crc32c=AAAAAA==,md5=kAFQmDzST7DWlj99KOF/cg==\r\n";
  fetch(wanted);
  EXPECT_EQ(test::get(place()), "abc");
}

TEST_F(FetchFile, ComparesACrcWhereAServerTellsNoMore) {
  HttpServer server({});
  std::string head = "x-goog-hash: crc32c=AAAAAA==\r\n";
  server.answer_by([&](const std::string&) { return answer("200 OK", head); });
  const FetchRequest wanted = request(server.url() + "f");
  EXPECT_THAT(error(wanted), HasSubstr("CRC-32C is 364b3fb7, expected 00000000"));
  head = "x-goog-hash: crc32c=Nks/tw==\r\n";
  fetch(wanted);
  EXPECT_EQ(test::get(place()), "abc");
}

TEST_F(FetchFile, AddressesOfHuggingFace) {
  EXPECT_EQ(resolved_url("https://a.b/c@d"), "https://a.b/c@d");
  EXPECT_EQ(resolved_url("hf://o/n/a/b@c.bin"),
            "https://huggingface.co/o/n/resolve/main/a/b@c.bin");
  EXPECT_EQ(resolved_url("hf://datasets/o/n@1.0/x.tar"),
            "https://huggingface.co/datasets/o/n/resolve/1.0/x.tar");
  for (const std::string rest :
       {"", "o", "o/n", "o/n/", "o/n@/x", "/n/x", "o/../x", "o/n/x?y", "o/n/x y"}) {
    EXPECT_THAT(usage_of([&] { resolved_url("hf://" + rest); }),
                HasSubstr("OWNER/NAME[@REVISION]/PATH"))
        << rest;
  }
}

TEST_F(FetchFile, ATokenLeavesTheMachineEncrypted) {
  const ScopedEnv token("MY_TOKEN", "abc123");
  FetchRequest wanted = request("http://localhost.example.org/f");
  wanted.token_env = "MY_TOKEN";
  EXPECT_THAT(
      usage_of([&] { fetch(wanted); }),
      AllOf(HasSubstr("the token in MY_TOKEN is sent over https only"), Not(HasSubstr("abc123"))));
}

TEST_F(FetchFile, NoSecretInAnAddress) {
  for (const std::string url :
       {"https://me:pass1word@a.b/c", "https://pass1word@a.b/c",
        "https://a.b/c?x=1&Token=pass1word", "https://a.b/c?password=pass1word",
        "hf://o/n/f?access_token=pass1word"}) {
    EXPECT_THAT(usage_of([&] { fetch_file(request(url)); }),
                AllOf(HasSubstr("token_env"), Not(HasSubstr("pass1word"))))
        << url;
  }
  EXPECT_EQ(url_problem("https://a.b/token/@x?version=3"), "");
  EXPECT_FALSE(test::fs::exists(place().parent_path()));
}

}  // namespace
}  // namespace moesaic
