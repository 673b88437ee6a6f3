// SPDX-License-Identifier: Apache-2.0
// A run that turns its dense network into a mixture, and prunes that.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ::testing::HasSubstr;

RunConfig course(const std::vector<std::string>& changes = {}) {
  return config_of(R"({"name": "course", "seed": 5, "checkpoint_every": 1, "num_checkpoints": 100,
      "evaluate_batch_size": 4, "num_loader_threads": 0,
      "model": {"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 8,
                "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 8}},
      "phases": [
        {"name": "dense", "data": "three", "batch_size": 6, "steps": 3},
        {"name": "mixture", "data": "three", "batch_size": 6, "steps": 3,
         "aux_losses": {"importance": 0.01}, "ema_decay": 0.5,
         "on_entry": {"upcycle": {"num_experts": 4, "layers": [1], "noise": 0.1}}},
        {"name": "pruned", "data": "three", "batch_size": 6, "steps": 1,
         "on_entry": {"prune": {"keep": 2, "criterion": "random"}}}]})",
                   changes);
}

TEST(UpcycleRun, EndsWithAPrunedMixtureAndResumesWithTheSameBits) {
  const TempDir folder;
  Trainer(course(), options_for(folder / "whole")).run();
  EXPECT_TRUE(load_model(folder / "whole/checkpoints/dense")->moe_blocks().empty());
  const auto mixture = load_model(folder / "whole/checkpoints/mixture");
  ASSERT_EQ(mixture->moe_blocks().size(), 1U);
  EXPECT_EQ(mixture->moe_blocks()[0].layer->options().num_experts, 4);
  const auto pruned = load_model(folder / "whole/checkpoints/pruned");
  EXPECT_EQ(pruned->moe_blocks()[0].layer->kept().size(), 2U);
  for (const int64_t step : {3, 4, 6}) {
    SCOPED_TRACE(step);
    const fs::path resumed = folder / std::to_string(step);
    copy_killed_after(folder / "whole", step, resumed);
    Trainer(course(), options_for(resumed, /*resume=*/true)).run();
    expect_same_step(folder / "whole", resumed, 7);
  }
}

TEST(UpcycleRun, IsCheckedBeforeAnythingIsTrained) {
  const auto refusal = [](const std::string& change) {
    return error_of([&] { Trainer(course({change}), options_for("")); });
  };
  const std::string upcycle = "phases.mixture.on_entry.upcycle.";
  EXPECT_THAT(refusal(upcycle + "layers=[2]"),
              AllOf(HasSubstr("names block 2, but there are 2 blocks"), HasSubstr("usage: ")));
  EXPECT_THAT(refusal(upcycle + "num_selected_experts=5"),
              HasSubstr("upcycle.num_selected_experts=5': num_selected_experts is 5, but there are "
                        "4 experts; choose at most 4"));
  EXPECT_THAT(refusal(R"(model.encoder.moe={"router": {"name": "threshold", "gate": "one"}})"),
              HasSubstr("upcycle: tokens choose among the copies, but encoder.moe.router.name is "
                        "adaptive; leave the router out of the dense network"));
  EXPECT_THAT(refusal("model.encoder.moe={\"layers\": [0]}"),
              HasSubstr("the network has experts already"));
  EXPECT_THAT(refusal("phases.pruned.on_entry.prune.keep=5"), HasSubstr("cannot keep 5 experts"));
  const std::string prune = "phases.pruned.on_entry.prune.";
  const auto compared_with = [&](const std::string& phase) {
    return error_of([&] {
      Trainer(course({prune + "criterion=router-norm-change", prune + "pretrained=" + phase}),
              options_for(""));
    });
  };
  EXPECT_THAT(compared_with("dense"), HasSubstr("it is dense, so it has no routers"));
  EXPECT_EQ(compared_with("mixture"), "no error");
}

}  // namespace
}  // namespace moesaic
