// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/reference.h"

#include <cmath>

#include "import/vmoe/fixture.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class VMoEArraysOfFiles : public ::testing::Test {
 protected:
  VMoEFileArrays written(const TensorMap& arrays,
                         const vmoe_checkpoint::WriteOptions& options = {}) {
    write_arrays(prefix(), arrays, options);
    return arrays_of_files(prefix());
  }
  std::filesystem::path prefix() const { return folder_ / "ckpt"; }

  test::TempDir folder_;
};

TEST_F(VMoEArraysOfFiles, EveryDtypeBecomesFloat32) {
  const at::Tensor values = torch::linspace(-3.0, 3.0, 60, at::kDouble).view({5, 12});
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    // Chunks and pieces of odd sizes, so that runs begin anywhere.
    const auto arrays = written({{"embedding/kernel", values.to(type)}},
                                {.shards = 3, .max_chunk_bytes = 30, .max_piece_bytes = 7});
    EXPECT_TRUE(torch::equal(arrays.read(arrays.entries.front()), values.to(type).to(at::kFloat)))
        << type;
  }
}

TEST_F(VMoEArraysOfFiles, ValuesThatAreNotFiniteAreRefused) {
  for (const double wrong : {double(NAN), double(INFINITY), 1e300}) {
    const auto arrays = written({{"embedding/kernel", torch::full({3}, wrong, at::kDouble)}});
    EXPECT_THAT(test::failure_of([&] { arrays.read(arrays.entries.front()); }),
                AllOf(HasSubstr(prefix().string()), HasSubstr("array 'embedding/kernel' holds")));
  }
}

TEST_F(VMoEArraysOfFiles, ParametersAreFoundInATrainState) {
  const at::Tensor one = at::ones({1});
  for (const std::string branch :
       {"", "params/", "target/", "optimizer/target/", "state/params/", "model/"}) {
    TensorMap all = {{branch + "embedding/kernel", one}, {branch + "head/bias", one}};
    if (!branch.empty()) {
      all["opt_state/0/trace/embedding/kernel"] = one;
      all["opt_state/1/mu/params/embedding/kernel"] = one;
      all["step"] = one;
    }
    const auto arrays = written(all);
    EXPECT_EQ(arrays.branch, branch);
    ASSERT_EQ(arrays.entries.size(), 2u) << branch;
    EXPECT_EQ(arrays.entries[1].name, "head/bias");
    EXPECT_EQ(arrays.others, branch.empty() ? 0 : 3);
  }
  write_arrays(prefix(), {{"a/embedding/kernel", one}, {"b/embedding/kernel", one}});
  EXPECT_THAT(test::failure_of([&] { arrays_of_files(prefix()); }),
              HasSubstr("parameters in several places: a/, b/"));
}

TEST_F(VMoEArraysOfFiles, ThePrefixMayBeAFileOfIt) {
  written({{"embedding/kernel", at::ones({1})}});
  EXPECT_EQ(vmoe_prefix(prefix()), prefix());
  EXPECT_EQ(vmoe_prefix(prefix().string() + ".index"), prefix());
  EXPECT_EQ(vmoe_prefix(prefix().string() + ".data-00000-of-00001"), prefix());
  EXPECT_THAT(test::usage_of([&] { vmoe_prefix(folder_ / "ckpd"); }),
              HasSubstr("did you mean '" + prefix().string() + "'?"));
  for (const char* more : {".index.index", ".index.index.index", ".data-00000-of-00001.index"}) {
    EXPECT_THAT(test::usage_of([&] { vmoe_prefix(prefix().string() + more); }),
                HasSubstr("no such file; did you mean '" + prefix().string() + "'?"));
  }
  EXPECT_THAT(test::usage_of([&] { vmoe_prefix(folder_ / "ckp.index"); }),
              HasSubstr("did you mean '" + prefix().string() + ".index'?"));
  EXPECT_THAT(test::usage_of([&] { vmoe_prefix(folder_.path()); }),
              HasSubstr("choose one of ckpt"));
  EXPECT_THAT(test::usage_of([&] { vmoe_prefix(folder_ / "none/ckpt"); }),
              HasSubstr("no such folder"));
}

}  // namespace
}  // namespace moesaic::testing
