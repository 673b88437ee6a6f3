// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/files/checkpoint.h"

#include <string>
#include <utility>

#include "support/matchers.h"

namespace moesaic::vmoe_checkpoint {
namespace {

// The chunks' places, one after the other.
std::string cut_text(const Shape& shape, std::size_t element_size, uint64_t limit) {
  const Layout layout = cut(shape, element_size, limit);
  EXPECT_EQ(tiling_problem(shape, layout), "");
  std::string text;
  for (std::size_t i = 0; i < layout.size(); ++i) text += box_text(layout.box(i));
  return text;
}

// Extent of the first chunk, and how many there are.
std::pair<std::string, std::size_t> first_of(const Shape& shape, uint64_t limit) {
  const Layout layout = cut(shape, 4, limit);
  return {box_text(layout.box(0)), layout.size()};
}

TEST(VMoeCheckpointCut, IsTheReferences) {
  EXPECT_EQ(cut_text({8, 16}, 4, 500), "[0:4, 0:16][4:8, 0:16]");
  EXPECT_EQ(cut_text({16, 8}, 4, 500), "[0:16, 0:4][0:16, 4:8]");
  EXPECT_EQ(first_of({8, 8, 3, 8}, 1024),
            std::pair(std::string("[0:4, 0:8, 0:1, 0:8]"), std::size_t{6}));
  EXPECT_EQ(first_of({8, 8, 3, 8}, 500),
            std::pair(std::string("[0:1, 0:8, 0:1, 0:8]"), std::size_t{24}));
  EXPECT_EQ(first_of({8, 8, 16}, 500), std::pair(std::string("[0:1, 0:4, 0:16]"), std::size_t{16}));
  EXPECT_EQ(first_of({7, 11, 13}, 300),
            std::pair(std::string("[0:1, 0:1, 0:13]"), std::size_t{77}));
}

TEST(VMoeCheckpointCut, LeavesWhatFitsOrCannotBeCut) {
  EXPECT_EQ(cut_text({}, 8, 1), "[]");
  EXPECT_EQ(cut_text({5, 0}, 8, 1), "[0:5, 0:0]");
  EXPECT_EQ(cut_text({125}, 4, 500), "[0:125]");
  EXPECT_EQ(cut_text({1, 3}, 8, 1), "[0:1, 0:1][0:1, 1:2][0:1, 2:3]");
}

TEST(VMoeCheckpointTiling, AcceptsTilesThatAreNoGrid) {
  Layout pinwheel{.rank = 2};
  for (const std::vector<int64_t>& box :
       {std::vector<int64_t>{0, 1, 0, 2}, {0, 2, 2, 3}, {2, 3, 1, 3}, {1, 3, 0, 1}, {1, 2, 1, 2}}) {
    pinwheel.add(box, 0);
  }
  EXPECT_EQ(tiling_problem({3, 3}, pinwheel), "");
  pinwheel.bounds.back() = 1;
  EXPECT_THAT(tiling_problem({3, 3}, pinwheel), HasSubstr("empty"));
}

/// More axes and more chunks than a check of all their corners could take.
TEST(VMoeCheckpointTiling, AcceptsChunksAlongManyAxes) {
  const Shape shape(16, 2);
  Layout layout = cut(shape, 1, 1);
  EXPECT_EQ(layout.size(), size_t{1} << 16);
  EXPECT_EQ(tiling_problem(shape, layout), "");
  for (size_t a = 0; a < 16; ++a) {  // the second chunk becomes the first
    layout.bounds[32 + 2 * a] = layout.bounds[2 * a];
    layout.bounds[33 + 2 * a] = layout.bounds[2 * a + 1];
  }
  EXPECT_EQ(tiling_problem(shape, layout), "chunks overlap and leave a hole");
}

TEST(VMoeCheckpointTiling, FindsOverlapsOfChunksOfAnySize) {
  Layout layout{.rank = 2};
  layout.add(std::vector<int64_t>{0, 1, 0, 1}, 0);
  layout.add(std::vector<int64_t>{0, 1, 1, 100}, 0);
  layout.add(std::vector<int64_t>{1, 100, 0, 99}, 0);
  layout.add(std::vector<int64_t>{1, 100, 99, 100}, 0);
  EXPECT_EQ(tiling_problem({100, 100}, layout), "");
  layout.bounds.back() = 99;
  layout.bounds[layout.bounds.size() - 2] = 98;
  EXPECT_EQ(tiling_problem({100, 100}, layout), "chunks overlap and leave a hole");
}

TEST(VMoeCheckpointRuns, GoThroughABoxInOrder) {
  const Shape shape = {3, 4, 2, 5, 2};
  const std::vector<int64_t> box = {1, 3, 0, 4, 1, 2, 1, 4, 0, 2};
  std::vector<uint64_t> expected;  // the bytes of the box's elements of two bytes
  for (int64_t a = 1; a < 3; ++a) {
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t d = 1; d < 4; ++d) {
        for (int64_t e = 0; e < 2; ++e) {
          const auto element = static_cast<uint64_t>((((a * 4 + b) * 2 + 1) * 5 + d) * 2 + e);
          expected.insert(expected.end(), {2 * element, 2 * element + 1});
        }
      }
    }
  }
  for (const uint64_t limit : {1, 5, 12, 1000}) {
    Runs runs(shape, box, 2);
    EXPECT_EQ(runs.left(), expected.size());
    std::vector<uint64_t> found;
    while (runs.left() > 0) {
      const Runs::Run run = runs.next(limit);
      ASSERT_GT(run.count, 0u);
      for (uint64_t i = 0; i < run.count; ++i) found.push_back(run.first + i);
    }
    EXPECT_EQ(found, expected) << limit;
  }
}

}  // namespace
}  // namespace moesaic::vmoe_checkpoint
