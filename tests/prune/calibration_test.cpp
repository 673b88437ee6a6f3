// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/calibration.h"

#include <limits>

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

class Calibration : public ::testing::Test {
 protected:
  Calibration() {
    const ExpertStatisticsMeter meter(*model_);
    run(*model_, small_images(3));
    use_ = meter.statistics();
    save_calibration(file_, use_, source_);
  }

  const test::TempDir folder_;
  const std::shared_ptr<VMoE> model_ = small_vmoe();
  const fs::path file_ = folder_ / "use.safetensors";
  const CalibrationSource source_ = {{kCalibratedCheckpointKey, "small (step 5, 12ab)"},
                                     {"network", "12ab"},
                                     {"data", "3 images cd"},
                                     {"seed", "0"}};
  ExpertStatistics use_;
};

TEST_F(Calibration, ScoresByEveryCriterionAsBefore) {
  const ExpertStatistics read = read_calibration(file_, source_, *model_);
  ASSERT_EQ(read.size(), 2U);
  for (const MoEBlock& block : model_->moe_blocks()) {
    const LayerStatistics &was = use_.at(block.block), &is = read.at(block.block);
    for (const Criterion& criterion : criteria()) {
      if (!criterion.needs_images) continue;
      EXPECT_EQ(expert_scores(criterion.name, {.finetuned = block, .statistics = &is}),
                expert_scores(criterion.name, {.finetuned = block, .statistics = &was}))
          << criterion.name;
    }
    EXPECT_TRUE(at::equal(is.products_EE, was.products_EE));
    EXPECT_TRUE(at::equal(is.mean_outputs_Eo(), was.mean_outputs_Eo()));
  }
}

TEST_F(Calibration, OfAnotherNetworkOrOtherImagesIsRefusedInOneLine) {
  CalibrationSource moved = source_;
  moved[kCalibratedCheckpointKey] = "another";
  read_calibration(file_, moved, *model_);
  for (const auto& [name, value] : source_) {
    if (name == kCalibratedCheckpointKey) continue;
    CalibrationSource other = moved;
    other[name] = "another";
    EXPECT_EQ(
        test::usage_of([&] { read_calibration(file_, other, *model_); }),
        file_.string() + ": recorded with another " + name + ": " +
            (name == "network" ? source_.at(kCalibratedCheckpointKey) : value) +
            ", not another; record it again: prune with --save-calibration NEW.safetensors in "
            "place of --calibration");
  }
  EXPECT_THAT(test::usage_of([&] { read_calibration(folder_ / "no", source_, *model_); }),
              HasSubstr("no such file"));
  write_tensors(file_, {{"x", at::zeros({1})}});
  EXPECT_THAT(test::usage_of([&] { read_calibration(file_, source_, *model_); }),
              HasSubstr("not a calibration file"));
}

TEST_F(Calibration, IsOfWeightsAndConfiguration) {
  const Checkpoint one{.config = {{"model", model_->config()}},
                       .state = {{"step", 7}},
                       .model = state_of(*model_),
                       .folder = "small"};
  Checkpoint other = one;
  other.config["model"]["classifier"] = "mean";
  const CalibrationSource source = network_source(one);
  EXPECT_EQ(source.at(kCalibratedCheckpointKey), "small (step 7, " + source.at("network") + ")");
  EXPECT_NE(network_source(other).at("network"), source.at("network"));
}

TEST_F(Calibration, ThatIsDamagedIsRefused) {
  const TensorMap tensors = read_tensors(file_);
  CalibrationSource metadata = source_;
  metadata["format"] = "moesaic.calibration.2";
  const auto problem_of = [&](const std::string& name, const at::Tensor& wrong) {
    TensorMap changed = tensors;
    changed.erase(name);
    if (wrong.defined()) changed[name] = wrong;
    metadata["sha256"] = hash_of(changed);
    write_tensors(file_, changed, metadata);
    return test::failure_of([&] { read_calibration(file_, source_, *model_); });
  };
  for (const at::Tensor& wrong :
       {at::Tensor(), at::zeros({5, 5}, at::kDouble), at::zeros({6, 6}),
        at::full({6, 6}, std::numeric_limits<double>::infinity(), at::kDouble)}) {
    EXPECT_THAT(problem_of("3.products_EE", wrong),
                HasSubstr("'3.products_EE' is missing, of another shape or not from -1e+100 to"));
  }
  for (const double count : {-1.0, 1e300}) {
    EXPECT_THAT(problem_of("3.sums.0.0", at::full({6}, count, at::kDouble)),
                HasSubstr("'3.sums.0.0' is missing, of another shape or not from 0 to 9e+15"));
  }
  TensorMap negated = tensors;  // One sign bit.
  negated["3.products_EE"] = tensors.at("3.products_EE").clone();
  negated["3.products_EE"][0][0].neg_();
  metadata["sha256"] = hash_of(tensors);
  write_tensors(file_, negated, metadata);
  EXPECT_THAT(test::failure_of([&] { read_calibration(file_, source_, *model_); }),
              HasSubstr("the file was altered"));
}

}  // namespace
}  // namespace moesaic
