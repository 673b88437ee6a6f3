// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/calibration.h"

#include <limits>

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "prune/small_vmoe.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using testing::run;
using testing::small_images;
using testing::small_vmoe;

class Calibration : public ::testing::Test {
 protected:
  Calibration() {
    const ExpertUseMeter meter(*model_);
    run(*model_, small_images(3));
    use_ = meter.use();
    save_calibration(file_, use_, source_);
  }

  const test::TempDir folder_;
  const std::shared_ptr<VMoE> model_ = small_vmoe();
  const fs::path file_ = folder_ / "use.safetensors";
  const CalibrationSource source_ = {{"network", "12ab"}, {"data", "3 images cd"}, {"seed", "0"}};
  ExpertUse use_;
};

TEST_F(Calibration, ScoresByEveryCriterionAsBefore) {
  const ExpertUse read = read_calibration(file_, source_, *model_);
  ASSERT_EQ(read.size(), 2U);
  for (const MoEBlock& block : model_->moe_blocks()) {
    const LayerUse &was = use_.at(block.block), &is = read.at(block.block);
    for (const Criterion& criterion : criteria()) {
      if (!criterion.needs_images) continue;
      EXPECT_EQ(expert_scores(criterion.name, {.finetuned = block, .use = &is}),
                expert_scores(criterion.name, {.finetuned = block, .use = &was}))
          << criterion.name;
    }
    EXPECT_TRUE(at::equal(is.products_EE, was.products_EE));
    EXPECT_TRUE(at::equal(is.mean_outputs_Eo(), was.mean_outputs_Eo()));
  }
}

TEST_F(Calibration, OfAnotherNetworkOrOtherImagesIsRefusedInOneLine) {
  for (const auto& [name, value] : source_) {
    CalibrationSource other = source_;
    other[name] = "another";
    EXPECT_EQ(test::usage_of([&] { read_calibration(file_, other, *model_); }),
              file_.string() + ": its calibration is of other " + name + ": " + value +
                  ", not another; make it again by --save-calibration");
  }
  write_tensors(file_, {{"x", at::zeros({1})}});
  EXPECT_THAT(test::usage_of([&] { read_calibration(file_, source_, *model_); }),
              HasSubstr("is no calibration"));
}

TEST_F(Calibration, ThatIsDamagedIsRefused) {
  TensorMap tensors = read_tensors(file_);
  CalibrationSource metadata = source_;
  metadata["format"] = "moesaic.calibration.1";
  for (const at::Tensor& wrong :
       {at::Tensor(), at::zeros({5, 5}, at::kDouble), at::zeros({6, 6}),
        at::full({6, 6}, std::numeric_limits<double>::infinity(), at::kDouble)}) {
    TensorMap changed = tensors;
    changed.erase("3.products_EE");
    if (wrong.defined()) changed["3.products_EE"] = wrong;
    write_tensors(file_, changed, metadata);
    EXPECT_THAT(test::failure_of([&] { read_calibration(file_, source_, *model_); }),
                HasSubstr("'3.products_EE' is missing, of another shape or not finite"));
  }
}

}  // namespace
}  // namespace moesaic
