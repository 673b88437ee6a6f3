// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/prune_search.h"

#include <fmt/format.h>

#include "base/support.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/report/figure.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): runs of a second

/// A network of two layers with four experts each, of which a token selects one, on three quarters.
class PruneSearchOf : public ::testing::Test {
 protected:
  PruneSearchOf() {
    const RunConfig run = config_of(
        R"({"name": "small", "seed": 5, "num_loader_threads": 0, "checkpoint_every": 0,
            "model": {"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 8,
                      "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 8,
                      "moe": {"layers": [0, 1], "num_experts": 4,
                              "router": {"num_selected_experts": 1}}}},
            "phases": [{"name": "learn", "data": "three", "batch_size": 6, "steps": 120,
                        "optimizer": {"name": "adamw", "lr": 0.02}}]})");
    Trainer(run, options_for(folder_ / "run")).run();
    checkpoint_ = load_newest_checkpoint(folder_ / "run", {.load_optimizer = false});
    options_.finetuned = folder_ / "run";
    options_.prune.criterion = "random";
    search_.evaluate.batch_size = 9;
    search_.evaluate.num_loader_threads = 0;
  }

  PruneSearch search() { return search_pruning(options_, checkpoint_, data_, search_); }

  double accuracy(const PrunePlan& plan) const {
    const auto pruned = model_of(checkpoint_);
    apply_plan(*pruned, plan);
    return evaluate(*pruned, data_, search_.evaluate).metric("accuracy");
  }

  void prune_second_layer() {
    PruneCheckpointOptions second = options_;
    test::put(folder_ / "second.json", R"({"1": 2})");
    second.prune.keep = KeepSpec::parse((folder_ / "second.json").string());
    second.out = options_.finetuned = folder_ / "unequal";
    prune_checkpoint(second);
    checkpoint_ = load_newest_checkpoint(options_.finetuned, {.load_optimizer = false});
  }

  /// Returns the plan that keeps this many experts of each layer, or all that it has.
  PrunePlan plan_of(int64_t count) const {
    const auto shape = meta_model_of(checkpoint_);
    std::string keep;
    for (const MoEBlock& block : shape->moe_blocks()) {
      const auto present = static_cast<int64_t>(block.layer->kept().size());
      keep += fmt::format(R"({}"{}": {})", keep.empty() ? "{" : ", ", block.block,
                          std::min(count, present));
    }
    PruneCheckpointOptions options = options_;
    options.prune.keep = KeepSpec::from_value(Document::from_text(keep + "}", "keep").root());
    return plan_checkpoint(options, checkpoint_, *shape);
  }

  /// Ranks by seeds until accuracy falls with every expert, as bisection takes it. Returns the
  /// accuracies by number of experts, nothing where no seed does.
  std::map<int64_t, double> falling_accuracies() {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      options_.prune.seed = seed;
      std::map<int64_t, double> found;
      for (int64_t count = 1; count <= 4; ++count) found[count] = accuracy(plan_of(count));
      if (found[1] < found[2] && found[2] < found[3] && found[3] <= found[4]) return found;
    }
    return {};
  }

  TempDir folder_;
  std::shared_ptr<const Dataset> data_ = quarters("three", "validation", 3, 90);
  Checkpoint checkpoint_;
  PruneCheckpointOptions options_;
  PruneSearchOptions search_;
};

TEST_F(PruneSearchOf, BisectionFindsANetworkWithinTheDropAndSaysWhatItTried) {
  for (const double drop : {0.0, 0.1, 0.99}) {
    SCOPED_TRACE(drop);
    search_.max_drop = drop;
    const PruneSearch found = search();
    const double whole = found.points.front().accuracy;
    EXPECT_EQ(found.points.front().experts, "4, 4");
    EXPECT_EQ(found.points.front().parameters, 1.0);
    EXPECT_GE(accuracy(found.plan), whole - 100 * drop);
    EXPECT_EQ(found.plan_point().accuracy, accuracy(found.plan));
    EXPECT_LE(found.points.size(), 4U);
    EXPECT_EQ(found.lowest_accuracy(), whole - 100 * drop);
    EXPECT_EQ(found.plan.layers[0].kept.size(), found.plan.layers[1].kept.size());
  }
  search_.max_drop = 0.99;
  EXPECT_EQ(search().plan_point().experts, "1, 1") << "a token still selects one";
}

TEST_F(PruneSearchOf, BisectionFindsTheSmallestOfAllNumbers) {
  // Where two experts of the second layer are left, larger numbers are of the first alone.
  for (const bool unequal : {false, true}) {
    SCOPED_TRACE(unequal);
    if (unequal) prune_second_layer();
    std::map<int64_t, double> accuracies = falling_accuracies();
    ASSERT_FALSE(accuracies.empty());
    for (const int64_t wanted : {2, 3}) {
      SCOPED_TRACE(wanted);
      search_.max_drop = (accuracies[4] - accuracies[wanted]) / 100 + 1e-9;
      const PruneSearch found = search();
      EXPECT_EQ(to_json(found.plan), to_json(plan_of(wanted)));
      EXPECT_EQ(found.plan_point().accuracy, accuracies[wanted]);
    }
  }
}

TEST_F(PruneSearchOf, ScopeAndExcludedBlocksHold) {
  search_.max_drop = 0.99;
  options_.prune.keep = KeepSpec::fraction(1.0);
  options_.prune.keep.exclude_blocks({1});
  EXPECT_EQ(search().plan_point().experts, "1, 4");
  options_.prune.keep = KeepSpec::fraction(1.0);
  options_.prune.keep.set_scope(KeepScope::network);
  EXPECT_EQ(search().plan_point().experts, "1, 1");
  options_.prune.keep.exclude_blocks({7});
  EXPECT_THAT(test::usage_of([&] { search(); }), HasSubstr("block 7"));
}

TEST_F(PruneSearchOf, TheGreedyWayTakesOneExpertAtATime) {
  search_.method = kGreedy;
  search_.max_drop = 0.99;
  const PruneSearch found = search();
  EXPECT_EQ(found.points.size(), 7U) << "the whole network, and six experts that can go";
  EXPECT_EQ(found.plan_point().experts, "1, 1");
  search_.max_drop = 0.05;
  const PruneSearch near = search();
  EXPECT_GE(accuracy(near.plan), near.points.front().accuracy - 5);
  for (size_t i = 1; i < near.points.size(); ++i) {
    EXPECT_LT(near.points[i].parameters, near.points[i - 1].parameters);
    EXPECT_TRUE(near.points[i].accuracy >= near.lowest_accuracy() || i + 1 == near.points.size());
  }
}

TEST_F(PruneSearchOf, MayBeEndedAndIsShown) {
  struct Ended {};
  int64_t calls = 0;
  search_.progress = [&](int64_t done, int64_t at_most) {
    EXPECT_LT(done, at_most);
    EXPECT_EQ(done, 0) << "it is asked after every batch, not after every network";
    if (++calls == 3) throw Ended{};
  };
  EXPECT_THROW(search(), Ended);
  EXPECT_EQ(calls, 3);
  search_.progress = nullptr;
  search_.max_drop = 0.1;
  PruneSearch found = search();
  EXPECT_THAT(to_text(found), HasSubstr("at most 10 points below the unpruned network's"));
  found.max_drop = 0.01;
  EXPECT_THAT(to_text(found), HasSubstr("at most 1 point below"));
  EXPECT_THAT(to_text(found), HasSubstr("chosen"));
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  draw_figure_file(folder_ / "curve.png", search_figure(found, "curve"));
  EXPECT_TRUE(fs::exists(folder_ / "curve.png"));
}

}  // namespace
}  // namespace moesaic
