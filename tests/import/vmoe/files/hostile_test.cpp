// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are wrong: each is refused with one line, in bounded time and memory.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <functional>

#include "import/vmoe/files/fixture.h"
#include "support/matchers.h"

namespace moesaic::vmoe_test {
namespace {

// While it lives, the process gets no more than `bytes` beyond what it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
#ifndef __SANITIZE_ADDRESS__
    std::ifstream file("/proc/self/statm");
    uint64_t pages = 0;
    file >> pages;
    ::getrlimit(RLIMIT_AS, &former_);
    rlimit limited = former_;
    limited.rlim_cur = pages * 4096 + bytes;
    ::setrlimit(RLIMIT_AS, &limited);
#endif
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() {
#ifndef __SANITIZE_ADDRESS__
    ::setrlimit(RLIMIT_AS, &former_);
#endif
  }

 private:
  rlimit former_{};
};

class HostileVMoeCheckpoint : public ::testing::Test {
 protected:
  std::string refused(const Parts& parts) {
    parts.put(prefix());
    return refused();
  }
  std::string refused() {
    const MemoryLimit limit(64 << 20);
    const std::string message = test::failure_of([&] { read_all(prefix()); });
    EXPECT_THAT(message, HasSubstr(prefix().string() + "."));
    EXPECT_LT(message.size(), prefix().string().size() + 300);
    return message;
  }
  std::string refused_index(const std::string& index) { return refused(Parts{.index = index}); }
  std::string refused_chunks(const std::vector<Chunk>& chunks) {
    return refused(Parts{.chunks = chunks});
  }
  std::string refused_shard_0(const std::vector<std::string>& arrays) {
    return refused(Parts{.shard_0 = arrays});
  }
  // The right chunk of "a/x" in shard 0 is this one.
  std::string refused_chunk(const std::string& text) {
    return refused_shard_0({array("0", {text}), array("1", {Parts::scalar_chunk()})});
  }
  std::filesystem::path prefix() const { return folder_ / "ckpt"; }
  std::filesystem::path shard(int i) const {
    return prefix().string() + fmt::format(".data-0000{}-of-00002", i);
  }

  test::TempDir folder_;
};

TEST_F(HostileVMoeCheckpoint, MissingFiles) {
  EXPECT_THAT(refused(), AllOf(HasSubstr("ckpt.index"), HasSubstr("No such file")));
  Parts().put(prefix());
  std::filesystem::remove(shard(1));
  EXPECT_THAT(refused(), AllOf(HasSubstr("00001-of-00002"), HasSubstr("No such file")));
}

TEST_F(HostileVMoeCheckpoint, ShardsThatAreCutShort) {
  const std::string whole = chunk({piece("int8", 1000, std::string(1000, 'x'))}, {0, 1000});
  const Parts parts{.index = index_file(2, {leaf("x", {1000}, "int8", {{{0, 1000}, 1}})}),
                    .shard_0 = {},
                    .shard_1 = {array("0", {whole})}};
  parts.put(prefix());
  EXPECT_EQ(read_all(prefix()).at("x"), std::string(1000, 'x'));
  std::filesystem::resize_file(shard(1), 500);
  EXPECT_THAT(refused(), AllOf(HasSubstr("needs 1000 bytes"),
                               HasSubstr(fmt::format("a shard may be cut short, their bytes are "
                                                     "{}, 500",
                                                     std::filesystem::file_size(shard(0))))));
  std::filesystem::resize_file(shard(1), 0);
  EXPECT_THAT(refused(), HasSubstr("data-00001-of-00002: the shard is empty, 0 bytes"));
}

TEST_F(HostileVMoeCheckpoint, ReorderedShards) {
  Parts parts;
  std::swap(parts.shard_0, parts.shard_1);
  EXPECT_THAT(refused(parts), HasSubstr("no chunk [0:2, 0:1] in this shard"));
}

TEST_F(HostileVMoeCheckpoint, TilesThatDoNotTile) {
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 1}, 1}}),
              HasSubstr("'a/x': a hole: its chunks hold 2 of 6"));
  EXPECT_THAT(refused_chunks({}), HasSubstr("hold 0 of 6"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 2}, 1}, {{0, 2, 1, 3}, 0}}), HasSubstr("chunks overlap"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 3}, 1}, {{0, 2, 0, 3}, 0}}), HasSubstr("chunks overlap"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 1}, 1}, {{0, 2, 0, 1}, 0}, {{0, 2, 1, 2}, 0}}),
              HasSubstr("chunks overlap and leave a hole"));
  // As many elements in all, and every corner and axis in order.
  EXPECT_THAT(
      refused_chunks({{{0, 1, 0, 2}, 0}, {{0, 1, 1, 3}, 0}, {{1, 2, 0, 1}, 0}, {{1, 2, 2, 3}, 0}}),
      HasSubstr("chunks overlap and leave a hole"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 3}, 1}, {{0, 2, 1, 1}, 0}}),
              HasSubstr("[0:2, 1:1] is empty"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 4}, 1}}), HasSubstr("takes 0:4 of an axis of size 3"));
  EXPECT_THAT(refused_chunks({{{0, 2, 2, 1}, 1}}), HasSubstr("takes 2:1"));
  EXPECT_THAT(refused_chunks({{{0, 2}, 1}}), HasSubstr("must have 2 elements, found 1"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 3}, 2}}), HasSubstr("unknown shard 2, there are 2"));
  EXPECT_THAT(refused_chunks({{{0, 2, 0, 3}, UINT64_MAX}}), HasSubstr("unknown shard"));
}

TEST_F(HostileVMoeCheckpoint, ClaimsOfTheIndex) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {uint64_t{1} << 60}, {uint64_t{1} << 30, uint64_t{1} << 30}, {1000, 1000}};
  for (const auto& shape : shapes) {
    Parts parts;
    parts.shape = shape;
    parts.chunks = {{{}, 0}};
    for (const uint64_t n : shape) parts.chunks[0].box.insert(parts.chunks[0].box.end(), {0, n});
    EXPECT_THAT(refused(parts), HasSubstr("the shards have"));
  }
  Parts parts;
  parts.shape = {uint64_t{1} << 32, uint64_t{1} << 32};
  EXPECT_THAT(refused(parts), HasSubstr("larger than any file"));
  parts.shape = {UINT64_MAX};
  EXPECT_THAT(refused(parts), HasSubstr("too large"));
  parts.shape.assign(33, 1);
  EXPECT_THAT(refused(parts), HasSubstr("rank 33"));
  // Many arrays, each of which would fit.
  std::vector<std::string> items;
  for (int i = 0; i < 100; ++i) {
    items.push_back(leaf(fmt::format("{}", i), {50}, "int8", {{{0, 50}, 0}}));
  }
  EXPECT_THAT(refused_index(index_file(2, items)), HasSubstr("for other arrays"));
}

TEST_F(HostileVMoeCheckpoint, CountsOfMessagePack) {
  // An array32, a map32, an ext32, a bin32, a str32, each of 2^32 - 1, where something is expected.
  const std::string huge = "\xff\xff\xff\xff";
  const std::string start = "\x83\xa5index\x81\xa1k";
  EXPECT_THAT(refused_index("\xdf" + huge),
              HasSubstr("byte 0: truncated: the index file would have"));
  EXPECT_THAT(refused_index("\x83\xa5index\xdf" + huge), HasSubstr("truncated: index would have"));
  EXPECT_THAT(refused_index(start + "\xc9" + huge + "\x08"),
              HasSubstr("truncated: an index entry"));
  EXPECT_THAT(refused_index("\x81\xdb" + huge), HasSubstr("truncated: a key needs 4294967295"));
  EXPECT_THAT(refused_index(start + "\xdd" + huge),
              HasSubstr("must be an extension, found an array"));
  EXPECT_THAT(refused_index("\x81\xc1\xc0"),
              HasSubstr("byte 1: a key expected, found no MessagePack"));
  Parts().put(prefix());
  test::put(prefix().string() + ".index", "");
  EXPECT_THAT(refused(), HasSubstr("byte 0: truncated"));
  const std::string chunks =
      "\xa1"
      "0\xdd" +
      huge;
  EXPECT_THAT(refused_shard_0({chunks}), HasSubstr("the chunks would have 4294967295 elements"));
  EXPECT_THAT(refused_shard_0({"\xa1"
                               "0\x91\x92\xdd" +
                               huge}),
              HasSubstr("the pieces of a chunk would"));
  EXPECT_THAT(refused_shard_0({"\xa1"
                               "0\x91\x92\x91\xc9" +
                               huge + "\x01"}),
              HasSubstr("a piece needs 4294967295 bytes"));
}

TEST_F(HostileVMoeCheckpoint, NestedTooDeep) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "\x81\xa1k";
  EXPECT_THAT(refused_index("\x83\xa5index" + deep), HasSubstr("nested deeper than 64 maps"));
  std::string arrays(10'000, '\x91');
  EXPECT_THAT(refused_index("\x83\xa5index\x81\xa1k" + arrays), HasSubstr("must be an extension"));
  EXPECT_THAT(refused_shard_0({"\xa1"
                               "0" +
                               arrays}),
              HasSubstr("must have 2 elements, found 1"));
  // 64 are allowed.
  Parts parts;
  std::string item = leaf("x", {}, "uint8", {{{}, 0}});
  for (int i = 1; i < 64; ++i) item = branch("k", {item});
  parts.index = index_file(2, {item});
  parts.shard_0 = {array("0", {Parts::scalar_chunk()})};
  parts.shard_1 = {};
  parts.put(prefix());
  EXPECT_EQ(read_all(prefix()).size(), 1u);
  parts.index = index_file(2, {branch("k", {item})});
  EXPECT_THAT(refused(parts), HasSubstr("nested deeper"));
}

TEST_F(HostileVMoeCheckpoint, LongNames) {
  // Names that would be built out of one long key, again and again.
  std::vector<std::string> items(100'000, std::string("\xa1k\x80"));
  const std::string key(1 << 20, 'n');
  EXPECT_THAT(refused_index(index_file(2, {branch(key, items)})),
              HasSubstr("longer than 1024 bytes"));
}

TEST_F(HostileVMoeCheckpoint, KeysOfTheIndex) {
  const std::string b = leaf("b", {}, "uint8", {{{}, 0}});
  EXPECT_THAT(refused_index(index_file(2, {b, b})), HasSubstr("key 'b' stands twice"));
  EXPECT_THAT(refused_index(index_file(2, {branch("b", {b}), b})),
              HasSubstr("key 'b' stands twice"));
  EXPECT_THAT(refused_index(index_file(2, {leaf("b/c", {}, "uint8", {})})), HasSubstr("has a '/'"));
  EXPECT_THAT(refused_index(index_file(2, {leaf("\xc3(", {}, "uint8", {})})), HasSubstr("UTF-8"));
  EXPECT_THAT(refused_index(index_file(0, {b})), HasSubstr("shard_count must be 1 to 99999"));
  EXPECT_THAT(refused_index(index_file(100'000, {b})), HasSubstr("found 100000"));
  EXPECT_THAT(refused_index(index_file(2, {b}, "20990101")),
              HasSubstr("unknown version '20990101'"));
  EXPECT_THAT(refused_index(index_file(2, {b}) + "x"), HasSubstr("1 bytes after the index"));
  EXPECT_THAT(refused_index("\x80"), HasSubstr("no key shard_count"));
  EXPECT_THAT(refused_index("\x81\xabshard_count\x02"), HasSubstr("no key index"));
  EXPECT_THAT(refused_index("\x81\xa3who\x02"), HasSubstr("unknown or repeated key 'who'"));
  EXPECT_THAT(refused_index("\x81\xa5index\xc0"), HasSubstr("index must be a map, found nil"));
}

TEST_F(HostileVMoeCheckpoint, EntriesOfTheIndex) {
  EXPECT_THAT(refused_index(index_file(2, {leaf("b", {}, "uint8", {{{}, 0}}, 9)})),
              HasSubstr("array 'b': unknown extension type 9, an index entry has 8"));
  EXPECT_THAT(refused_index(index_file(2, {leaf("b", {}, "complex64", {{{}, 0}})})),
              HasSubstr("unknown dtype 'complex64'"));
  EXPECT_THAT(refused_index(index_file(
                  2, {leaf("b", {0, 5}, "uint8", {{{0, 0, 0, 5}, 0}, {{0, 0, 0, 5}, 1}})})),
              HasSubstr("more than one chunk"));
}

TEST_F(HostileVMoeCheckpoint, ArraysOfAShard) {
  const std::string right = array("0", {Parts::right_chunk()});
  const std::string scalar = array("1", {Parts::scalar_chunk()});
  EXPECT_THAT(refused_shard_0({right}), HasSubstr("'b' (number 1): chunk [] is missing"));
  EXPECT_THAT(refused_shard_0({right, array("1", {})}), HasSubstr("chunk [] is missing"));
  EXPECT_THAT(refused_shard_0({right, right, scalar}), HasSubstr("[0:2, 1:3] stands here twice"));
  EXPECT_THAT(refused_shard_0({right, array("2", {Parts::scalar_chunk()})}),
              HasSubstr("array number 2, the index has 2"));
  for (const char* number : {"01", "-1", "", "1 ", "99999999999999999999", "one"}) {
    EXPECT_THAT(refused_shard_0({right, array(number, {Parts::scalar_chunk()})}),
                HasSubstr("is not an array number"))
        << number;
  }
  EXPECT_THAT(refused_shard_0({array("0", {Parts::left_chunk()}), scalar}),
              HasSubstr("the index has no chunk [0:2, 0:1] in this shard"));
  Parts().put(prefix());
  test::put(shard(0), "\x80");
  EXPECT_THAT(refused(), HasSubstr("no key __msgpack_array_chunk_a87ca2__"));
  test::put(shard(0), shard_file({right, scalar}) + "x");
  EXPECT_THAT(refused(), HasSubstr("1 bytes after the shard"));
}

TEST_F(HostileVMoeCheckpoint, PiecesOfAChunk) {
  const Bounds box = {0, 2, 1, 3};
  EXPECT_THAT(refused_chunk(chunk({piece("int16", 4, "BBCCEEFF", 3)}, box)),
              HasSubstr("'a/x': unknown extension type 3, a piece has 1"));
  EXPECT_THAT(refused_chunk(chunk({piece("int16", 4, "BBCCEEFF")}, box, 7)),
              HasSubstr("unknown extension type 7, a chunk's place has 6"));
  EXPECT_THAT(refused_chunk(chunk({piece("float16", 4, "BBCCEEFF")}, box)),
              HasSubstr("a piece is 'float16', the index says int16"));
  EXPECT_THAT(refused_chunk(chunk({piece("int16", 5, "BBCCEEFF")}, box)),
              HasSubstr("a piece of 5 int16 has 8 bytes"));
  EXPECT_THAT(refused_chunk(chunk({piece("int16", (uint64_t{1} << 63) + 4, "BBCCEEFF")}, box)),
              HasSubstr("int16 has 8 bytes"));
  EXPECT_THAT(refused_chunk(chunk({piece("int16", 3, "BBCCEE")}, box)),
              HasSubstr("has 4 elements, its pieces have 3"));
  EXPECT_THAT(refused_chunk(chunk({piece("int16", 4, "BBCCEEFF"), piece("int16", 1, "GG")}, box)),
              HasSubstr("has 4 elements, its pieces have 5"));
  EXPECT_THAT(refused_chunk(chunk({}, box)), HasSubstr("its pieces have 0"));
}

TEST_F(HostileVMoeCheckpoint, BoolsThatAreNone) {
  const Parts parts{
      .index = index_file(2, {leaf("b", {3}, "bool", {{{0, 3}, 0}})}),
      .shard_0 = {array("0", {chunk({piece("bool", 3, std::string("\0\1\2", 3))}, {0, 3})})},
      .shard_1 = {}};
  EXPECT_THAT(refused(parts), HasSubstr("byte 53: array 'b': a bool must be 0 or 1, found 2"));
}

// Whatever happens to a byte, or to all from one on: an Error, or arrays of some values.
TEST_F(HostileVMoeCheckpoint, EveryByteOfEveryFile) {
  Parts().put(prefix());
  std::size_t refusals = 0, reads = 0;
  const auto attempt = [&] {
    const MemoryLimit limit(64 << 20);
    try {
      for (const auto& [name, bytes] : read_all(prefix())) {
        EXPECT_LE(bytes.size(), 100u) << name;
      }
      ++reads;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failure);
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      ++refusals;
    }
  };
  for (const auto& path :
       {std::filesystem::path(prefix().string() + ".index"), shard(0), shard(1)}) {
    const std::string whole = test::get(path);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const int flip : {0x01, 0x02, 0x08, 0x10, 0x40, 0x80, 0xff}) {
        std::string text = whole;
        text[i] = static_cast<char>(text[i] ^ flip);
        test::put(path, text);
        attempt();
      }
      const std::size_t before = refusals;
      test::put(path, whole.substr(0, i));
      attempt();
      EXPECT_EQ(refusals, before + 1) << path << " cut at " << i;
      for (const char* wedge : {"\xc1", "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\x91"}) {
        test::put(path, whole.substr(0, i) + wedge + whole.substr(i));
        attempt();
      }
    }
    test::put(path, whole);
  }
  attempt();
  EXPECT_GT(reads, 50u);  // flipped values
  EXPECT_GT(refusals, 2000u);
}

}  // namespace
}  // namespace moesaic::vmoe_test
