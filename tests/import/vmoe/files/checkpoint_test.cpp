// SPDX-License-Identifier: Apache-2.0
// Checkpoints that the reference wrote (tests/golden/README.md), and round trips.
#include "import/vmoe/files/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "import/vmoe/files/fixture.h"
#include "moesaic/formats/safetensors.h"
#include "support/matchers.h"

namespace moesaic::vmoe_checkpoint {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = MOESAIC_TEST_SOURCE_DIR "/tests/golden/vmoe_checkpoint";
const fs::path kShared = MOESAIC_TEST_SOURCE_DIR "/../shared/golden/vmoe";

double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

template <class T>
T at(std::string_view bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Of the dtypes that the golden checkpoints have and safetensors files give in another one.
double value_at(std::string_view dtype, std::string_view bytes, std::size_t i) {
  if (dtype == "float32" || dtype == "F32") return at<float>(bytes, i);
  if (dtype == "int32" || dtype == "I32") return at<int32_t>(bytes, i);
  if (dtype == "uint32" || dtype == "U32") return at<uint32_t>(bytes, i);
  if (dtype == "bfloat16") {
    const uint32_t bits = uint32_t{at<uint16_t>(bytes, i)} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  if (dtype == "float16") return half_value(at<uint16_t>(bytes, i));
  if (dtype == "int8") return at<int8_t>(bytes, i);
  if (dtype == "bool") return at<uint8_t>(bytes, i);
  ADD_FAILURE() << "no such dtype here: " << dtype;
  return 0;
}

// Every array of the checkpoint is that of `values`, whose names begin with `name`.
void expect_values(const fs::path& prefix, const fs::path& values, const std::string& name = "") {
  const Reader reader(prefix);
  const safetensors::File file(values);
  EXPECT_THAT(reader.entries(), Not(IsEmpty()));
  std::size_t expected = 0;
  for (const auto& entry : file.entries()) expected += entry.name.starts_with(name) ? 1 : 0;
  EXPECT_EQ(reader.entries().size(), expected) << prefix;
  for (const Entry& entry : reader.entries()) {
    const auto* want = file.find(name + entry.name);
    ASSERT_NE(want, nullptr) << entry.name;
    EXPECT_EQ(entry.shape, want->shape) << entry.name;
    const std::string found = vmoe_test::read_array(reader, entry);
    const auto bytes = file.bytes(*want);
    const std::string_view right(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < found.size() / dtype_size(entry.dtype); ++i) {
      different += value_at(entry.dtype, found, i) != value_at(want->dtype, right, i);
    }
    EXPECT_EQ(different, 0u) << entry.name;
  }
}

// Reads a checkpoint and writes its arrays again, with what it was written with.
void copy(const fs::path& from, const fs::path& to, const WriteOptions& options) {
  const Reader reader(from);
  std::vector<Entry> entries(reader.entries().rbegin(), reader.entries().rend());
  std::string bytes;
  write(
      to, entries,
      [&](const Entry& entry) {
        bytes = vmoe_test::read_array(reader, entry);
        return std::as_bytes(std::span(bytes));
      },
      options);
}

// The files of `from` and `to` are the same, byte by byte.
void expect_same_files(const fs::path& from, const fs::path& to) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(from.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(from.filename().string() + ".")) continue;
    ++files;
    EXPECT_EQ(test::get(entry.path()), test::get(to.parent_path() / name)) << name;
  }
  EXPECT_GT(files, 1u);
}

TEST(VMoeCheckpoint, ReadsTheReferencesDtypesAndScalars) {
  const Reader reader(kGolden / "misc");
  std::vector<std::string> found;
  for (const Entry& e : reader.entries()) {
    found.push_back(fmt::format("{} {} [{}]", e.name, e.dtype, fmt::join(e.shape, ",")));
  }
  EXPECT_THAT(found, ElementsAre("a/bf16 bfloat16 [5,6]", "a/f16 float16 [3,2]", "a/int8 int8 [7]",
                                 "b/bool bool [3]", "b/int32 int32 [11]", "b/scalar float32 []",
                                 "b/uint32 uint32 [4]", "block_1/W float32 [2,1]",
                                 "block_1/w float32 [1,1]", "block_10/w float32 [7,11,13]",
                                 "block_2/w float32 [64,3]", "step int32 []"));
  EXPECT_EQ(reader.shard_count(), 5);
  EXPECT_EQ(reader.version(), "20220622");
  expect_values(kGolden / "misc", kGolden / "values.safetensors", "misc/");
  expect_values(kGolden / "sparse", kGolden / "values.safetensors", "sparse/");
}

TEST(VMoeCheckpoint, WritesTheReferencesBytes) {
  const test::TempDir folder;
  copy(kGolden / "misc", folder / "misc",
       {.shards = 5, .max_chunk_bytes = 300, .max_piece_bytes = 64});
  expect_same_files(kGolden / "misc", folder / "misc");
  copy(kGolden / "sparse", folder / "sparse", {.shards = 4});
  expect_same_files(kGolden / "sparse", folder / "sparse");
}

TEST(VMoeCheckpoint, AgreesWithEveryGoldenCheckpoint) {
  if (!fs::exists(kShared)) GTEST_SKIP() << "the golden files of V-MoE are not beside this tree";
  std::size_t checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kShared)) {
    if (entry.path().extension() != ".index") continue;
    fs::path prefix = entry.path();
    prefix.replace_extension();
    const fs::path here = prefix.parent_path();
    SCOPED_TRACE(prefix.string());
    fs::path values = here / "params.safetensors";
    std::string name;
    if (!fs::exists(values)) values = here / "source_params.safetensors";
    const std::string own = prefix.filename().string();
    if (own == "misc" || own == "sparse" || own == "train_state") {
      values = here / "other.safetensors";
      name = own + "/";
    }
    expect_values(prefix, values, name);
    ++checked;
  }
  EXPECT_GE(checked, 15u);
}

TEST(VMoeCheckpoint, WritesTheBytesOfEveryGoldenCheckpointOfOneDevice) {
  const fs::path here = kShared / "ckpt_format";
  if (!fs::exists(here)) GTEST_SKIP() << "the golden files of V-MoE are not beside this tree";
  const auto config = nlohmann::json::parse(test::get(here / "config.json"));
  for (const auto& [name, how] : config["checkpoints"].items()) {
    SCOPED_TRACE(name);
    if (how["expert_partitions"] != 1) continue;
    const test::TempDir folder;
    copy(here / name, folder / name,
         {.shards = how["num_shards"],
          .max_chunk_bytes = how["max_chunk_bytes"],
          .max_piece_bytes = how["subchunk_bytes"]});
    expect_same_files(here / name, folder / name);
  }
}

TEST(VMoeCheckpoint, ReadsAnIndexInAnyOrderAndWithoutVersion) {
  const test::TempDir folder;
  vmoe_test::Parts parts;
  parts.put(folder / "x");
  auto all = vmoe_test::read_all(folder / "x");
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(all["a/x"], "AABBCCDDEEFF");
  EXPECT_EQ(all["b"], "s");

  std::swap(parts.chunks[0], parts.chunks[1]);
  parts.index = vmoe_test::index_file(
      2,
      {vmoe_test::branch("a", {vmoe_test::leaf("x", {2, 3}, "int16", parts.chunks)}),
       vmoe_test::branch("empty", {}), vmoe_test::leaf("b", {}, "uint8", {{{}, 0}})},
      "");
  parts.put(folder / "x");
  EXPECT_EQ(vmoe_test::read_all(folder / "x"), all);
  EXPECT_EQ(Reader(folder / "x").version(), "");
}

TEST(VMoeCheckpoint, FindsByName) {
  const test::TempDir folder;
  vmoe_test::Parts().put(folder / "x");
  Reader first(folder / "x");
  const Reader reader = std::move(first);
  ASSERT_NE(reader.find("a/x"), nullptr);
  EXPECT_EQ(reader.find("a/x")->dtype, "int16");
  EXPECT_EQ(reader.find("a"), nullptr);
  EXPECT_EQ(reader.find("c"), nullptr);
}

std::string noise(std::size_t n) {
  std::string bytes;
  uint32_t x = 1;
  while (bytes.size() < n) bytes += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST(VMoeCheckpoint, RoundTripsEveryDtypeAndShape) {
  const test::TempDir folder;
  std::vector<Entry> entries;
  for (const char* dtype : {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
                            "uint64", "float16", "bfloat16", "float32", "float64"}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {1}, {0}, {3, 0, 5}, {6, 35, 2}, {4, 9, 5, 6}}) {
      entries.push_back({.name = fmt::format("{}/{}", dtype, fmt::join(shape, "x")),
                         .dtype = dtype,
                         .shape = shape});
    }
  }
  std::map<std::string, std::string> values;
  for (const Entry& entry : entries) {
    std::string& bytes = values[entry.name] = noise(byte_count(entry));
    if (entry.dtype == "bool") {
      for (char& byte : bytes) byte &= 1;
    }
  }
  const Source source = [&](const Entry& entry) {
    return std::as_bytes(std::span(values.at(entry.name)));
  };
  for (const uint64_t limit : {1, 7, 100, 5000}) {
    write(folder / "x", entries, source,
          {.shards = 3, .max_chunk_bytes = limit, .max_piece_bytes = limit});
    EXPECT_EQ(vmoe_test::read_all(folder / "x"), values) << limit;
  }
  EXPECT_EQ(folder.names().size(), 4u);
}

TEST(VMoeCheckpoint, RoundTripsNothing) {
  const test::TempDir folder;
  write(folder / "x", {}, [](const Entry&) { return std::span<const std::byte>(); });
  EXPECT_THAT(vmoe_test::read_all(folder / "x"), IsEmpty());
}

TEST(VMoeCheckpoint, GivesReadPagesBack) {
  const auto mapped_kib = [] {
    const std::string status = test::get("/proc/self/status");
    return std::stol(status.substr(status.find("RssFile:") + 8));
  };
  const test::TempDir folder;
  const Entry entry{.name = "x", .dtype = "uint8", .shape = {64 << 20}};
  std::string bytes(byte_count(entry), 'x');
  write(folder / "x", {entry}, [&](const Entry&) { return std::as_bytes(std::span(bytes)); });
  const long before = mapped_kib();
  const Reader reader(folder / "x");
  reader.read(entry, std::as_writable_bytes(std::span(bytes)));
  EXPECT_LT(mapped_kib() - before, 20 << 10);
}

TEST(VMoeCheckpointWrite, RefusesWrongDtypesAndSizes) {
  const test::TempDir folder;
  const auto refused = [&](std::vector<Entry> entries) {
    return test::failure_of([&] {
      write(folder / "x", std::move(entries), [](const Entry&) {
        static constexpr std::byte kZero[8] = {};
        return std::span<const std::byte>(kZero, 1);
      });
    });
  };
  EXPECT_THAT(refused({{"a", "complex64", {}}}), HasSubstr("unknown dtype 'complex64'"));
  EXPECT_THAT(refused({{"a", "int16", {}}}), HasSubstr("does not have 1 bytes"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(VMoeCheckpointWrite, RefusesShardsOutOfRange) {
  const test::TempDir folder;
  const auto refused = [&](const WriteOptions& options) {
    return test::usage_of([&] { write(folder / "x", {}, {}, options); });
  };
  EXPECT_THAT(refused({.shards = 0}), HasSubstr("1 to 99999, not 0"));
  EXPECT_THAT(refused({.shards = 100'000}), HasSubstr("not 100000"));
}

TEST(VMoeCheckpointWrite, LeavesTheOldOneWhenTheSourceFails) {
  const test::TempDir folder;
  vmoe_test::Parts().put(folder / "x");
  const auto names = folder.names();
  const Source source = [](const Entry&) -> std::span<const std::byte> { fail("no more"); };
  const Entry entry{.name = "x", .dtype = "int8", .shape = {}};
  EXPECT_EQ(test::failure_of([&] { write(folder / "x", {entry}, source, {.shards = 2}); }),
            "no more");
  EXPECT_EQ(folder.names(), names);
  EXPECT_EQ(vmoe_test::read_all(folder / "x").size(), 2u);
}

TEST(VMoeCheckpointWrite, PutsNoIndexBesideShardsOfAnotherWrite) {
  const test::TempDir folder;
  vmoe_test::Parts().put(folder / "x");
  const std::string value = "v";
  const Source source = [&](const Entry&) {  // the second shard cannot come into place any more
    fs::remove(folder / "x.data-00001-of-00002");
    fs::create_directory(folder / "x.data-00001-of-00002");
    return std::as_bytes(std::span(value));
  };
  const Entry entry{.name = "x", .dtype = "int8", .shape = {}};
  EXPECT_THAT(test::failure_of([&] { write(folder / "x", {entry}, source, {.shards = 2}); }),
              HasSubstr("00001-of-00002"));
  EXPECT_THAT(folder.names(), ElementsAre("x.data-00001-of-00002"));  // the folder
}

TEST(VMoeCheckpointWrite, LeavesNothingWhereTheDiskIsFull) {
  const test::TempDir folder;
  const std::string values(20'000, 'v');
  const Source source = [&](const Entry& entry) {
    return std::as_bytes(std::span(values)).first(byte_count(entry));
  };
  // The first shard would fit, the second does not.
  const std::vector<Entry> entries = {{"a", "int8", {100}}, {"b", "int8", {20'000}}};
  {
    const test::FileSizeLimit limit(4096);
    EXPECT_THAT(test::failure_of([&] { write(folder / "x", entries, source, {.shards = 2}); }),
                AllOf(HasSubstr("x.data-00001-of-00002"), HasSubstr("File too large")));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(VMoeCheckpointWrite, LeavesNothingWhereItIsStopped) {
  const test::TempDir folder;
  const std::string value = "v";
  const Source source = [&](const Entry&) { return std::as_bytes(std::span(value)); };
  const std::vector<Entry> entries = {{"a", "int8", {}}, {"b", "int8", {}}};
  for (const int last : {1, 2, 3}) {  // before each array, and before the files come
    int polls = 0;
    const auto poll = [&] {
      if (++polls == last) throw std::runtime_error("stop");
    };
    EXPECT_THROW(write(folder / "x", entries, source, {.shards = 2, .poll = poll}),
                 std::runtime_error);
    EXPECT_THAT(folder.names(), IsEmpty());
  }
}

}  // namespace
}  // namespace moesaic::vmoe_checkpoint
