// SPDX-License-Identifier: Apache-2.0
#include <archive.h>
#include <archive_entry.h>

#include <utility>
#include <vector>

#include "base/support.h"
#include "moesaic/formats/archive.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

std::string zip_of(const std::vector<std::pair<std::string, std::string>>& files,
                   const char* options) {
  std::string bytes(1 << 16, '\0');
  size_t used = 0;
  struct archive* const writer = archive_write_new();
  archive_write_set_format_zip(writer);
  EXPECT_EQ(archive_write_set_options(writer, options), ARCHIVE_OK);
  archive_write_open_memory(writer, bytes.data(), bytes.size(), &used);
  for (const auto& [name, content] : files) {
    struct archive_entry* const entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    EXPECT_EQ(archive_write_header(writer, entry), ARCHIVE_OK);
    archive_write_data(writer, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(writer);
  archive_write_free(writer);
  return bytes.substr(0, used);
}

const std::vector<std::pair<std::string, std::string>> kFiles = {
    {"model/data.pkl", "a pickle"}, {"model/extra/x", "0123456789"}, {"model/extra/y", ""}};

std::optional<std::string> stored(const std::string& bytes, const char* name) {
  const auto found = find_in_zip(std::as_bytes(std::span(bytes)), name, "a.pt");
  if (!found) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(found->data()), found->size());
}

class FindInZip : public ::testing::TestWithParam<const char*> {};

TEST_P(FindInZip, FindsMembersOfTheOuterFolder) {
  const std::string zip = zip_of(kFiles, GetParam());
  EXPECT_TRUE(is_zip(std::as_bytes(std::span(zip))));
  EXPECT_EQ(stored(zip, "extra/x"), "0123456789");
  EXPECT_EQ(stored(zip, "extra/y"), "");
  EXPECT_EQ(stored(zip, "data.pkl"), "a pickle");
  EXPECT_EQ(stored(zip, "x"), std::nullopt);
  EXPECT_EQ(stored(zip, "model/extra/x"), std::nullopt);
  EXPECT_EQ(stored(zip + std::string("junk before the end is none"), "z"), std::nullopt);
}

TEST_P(FindInZip, RefusesOrReadsWhateverIsDamaged) {
  const std::string zip = zip_of(kFiles, GetParam());
  for (size_t cut = 0; cut < zip.size(); ++cut) {
    EXPECT_THAT(test::failure_of([&] { stored(zip.substr(0, cut), "extra/x"); }),
                StartsWith("a.pt: "));
  }
  for (size_t bit = 0; bit < 8 * zip.size(); ++bit) {
    std::string flipped = zip;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      EXPECT_LE(stored(flipped, "extra/x").value_or("").size(), zip.size());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("a.pt: "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, FindInZip,
                         ::testing::Values("zip:compression=store",
                                           "zip:compression=store,zip:zip64"));

TEST(FindInZip, UnpacksNothing) {
  const std::string zip = zip_of({{"a/x", std::string(50'000, 'x')}}, "zip:compression=deflate");
  ASSERT_LT(zip.size(), 5000U);
  EXPECT_EQ(test::failure_of([&] { stored(zip, "x"); }),
            "a.pt: 'a/x' in the archive is compressed or encrypted");
}

TEST(FindInZip, TellsOtherFiles) {
  const std::string text = "{\"a\": 1}";
  EXPECT_FALSE(is_zip(std::as_bytes(std::span(text))));
  EXPECT_FALSE(is_zip({}));
  EXPECT_THAT(test::failure_of([&] { stored(text, "x"); }), HasSubstr("no list of its files"));
}

}  // namespace
}  // namespace moesaic
