// SPDX-License-Identifier: Apache-2.0
// A family from outside of the library: all that is generic works with it, without an edit in src/.
#include "support/toy_family.h"

#include "base/support.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/export/formats.h"
#include "moesaic/models/family.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

Value toy_value(const std::string& change = "") {
  Document document = Document::from_text(R"({"name": "toy"})", "recipe.json");
  if (!change.empty()) document.set(change);
  return document.root();
}

class ToyFamily : public ::testing::Test {
 protected:
  ToyFamily() { add_toy_family(); }

  fs::path saved(const std::string& name, uint64_t seed) {
    const auto model = build_model(toy_value(), seed);
    const Json config = {{"model", model->config()}, {"data", nullptr}, {"run", nullptr}};
    save_checkpoint(folder_ / name, {config, {{"step", 1}}, state_of(*model), {}});
    return folder_ / name;
  }
  PruneCheckpointOptions pruning() {
    PruneCheckpointOptions options;
    options.pretrained = saved("pretrained", 1);
    options.finetuned = saved("finetuned", 2);
    options.out = folder_ / "out";
    options.prune.keep = KeepSpec::count(2);
    return options;
  }

  const test::TempDir folder_;
};

TEST_F(ToyFamily, IsBuiltListedAndCounted) {
  const auto model = build_model(toy_value("num_classes=5"), 1);
  EXPECT_EQ(model->forward(torch::zeros({2, 1, 8, 8})).logits.sizes(),
            (std::vector<int64_t>{2, 5}));
  EXPECT_THAT(model_names(), Contains("toy"));
  EXPECT_TRUE(families().at("toy").is_listed);
  EXPECT_THAT(help_text(families().at("toy").help()), HasSubstr("of the only MoE layer"));
  EXPECT_EQ(count_parameters(toy_value()), 54 + 24 + 4 * (72 + 12 + 72 + 6) + 21);
  EXPECT_TRUE(build_meta_model(toy_value())->device().is_meta());
  EXPECT_THAT(test::usage_of([] { build_model(toy_value("num_experts=0"), 1); }),
              AllOf(HasSubstr("argument 'num_experts=0'"), HasSubstr("experts")));
  EXPECT_THAT(test::usage_of([] { families().add("toy", family_of<Toy, ToyConfig>("twice")); }),
              HasSubstr("model 'toy' is already registered"));
}

TEST_F(ToyFamily, IsSavedAndLoaded) {
  const fs::path folder = saved("one", 3);
  const auto model = build_model(toy_value(), 3), again = load_model(folder);
  const at::Tensor images = randn({3, 1, 8, 8}, 4, torch::kFloat);
  EXPECT_TRUE(torch::equal(again->forward(images).logits, model->forward(images).logits));
}

TEST_F(ToyFamily, IsPruned) {
  const PruneCheckpointOptions options = pruning();
  const PruneCheckpointResult result = prune_checkpoint(options);
  EXPECT_EQ(result.plan.layers.at(0).kept.size(), 2u);
  EXPECT_EQ(result.before.num_parameters - result.after.num_parameters, 2 * (72 + 12 + 72 + 6));
  const auto pruned = load_model(options.out);
  EXPECT_EQ(pruned->config().at("left"), result.plan.layers[0].kept);
  const auto whole = load_model(options.finetuned);
  apply_plan(*whole, result.plan);
  const at::Tensor images = randn({3, 1, 8, 8}, 4, torch::kFloat);
  EXPECT_TRUE(torch::equal(pruned->forward(images).logits, whole->forward(images).logits));

  Checkpoint checkpoint = load_checkpoint(options.out);
  checkpoint.config["model"]["left"] = nlohmann::ordered_json::array();
  save_checkpoint(folder_ / "forgot", checkpoint);
  EXPECT_THAT(test::failure_of([&] { load_model(folder_ / "forgot"); }),
              HasSubstr("left in the model's config has to name the experts that pruning left"));
}

TEST_F(ToyFamily, StartsFromAnother) {
  const auto source = build_model(toy_value("num_classes=2"), 1),
             model = build_model(toy_value(), 2);
  const auto shape = build_meta_model(toy_value("num_classes=2"));
  const TensorMap values = state_of(*source);
  const std::string message =
      test::failure_of([&] { model->initialise_from(*shape, values, false, "elsewhere"); });
  EXPECT_THAT(message, AllOf(HasSubstr("elsewhere: "), HasSubstr("2 different (head.bias")));
  model->initialise_from(*shape, values, true, "elsewhere");
  EXPECT_EQ(model->num_classes(), 2);
  for (const auto& [name, tensor] : values) {
    EXPECT_TRUE(torch::equal(state_of(*model).at(name), tensor)) << name;
  }
}

TEST_F(ToyFamily, IsInspected) {
  const PruneCheckpointOptions options = pruning();
  const auto kept = prune_checkpoint(options).plan.layers[0].kept;
  const auto whole = inspect(options.finetuned), pruned = inspect(options.out);
  ASSERT_EQ(whole["moe"].size(), 1u);
  EXPECT_EQ(whole["moe"][0]["experts"], 4);
  EXPECT_TRUE(whole["moe"][0]["kept"].is_null());
  EXPECT_EQ(pruned["moe"][0]["kept"], kept);
  const auto change = inspect_difference(options.finetuned, options.out)["config"];
  ASSERT_EQ(change.size(), 1u);
  EXPECT_EQ(change[0]["key"], "/left");
  EXPECT_EQ(change[0]["absent"], "all");
}

// A checkpoint may be of a family that this program does not have.
TEST_F(ToyFamily, WhatCannotBeBuiltIsInspectedAllTheSame) {
  const fs::path folder = saved("one", 1);
  Checkpoint checkpoint = load_checkpoint(folder);
  checkpoint.config["model"] = {{"name", "none such"}};
  save_checkpoint(folder_ / "other", checkpoint);
  const auto found = inspect(folder_ / "other");
  EXPECT_TRUE(found["moe"].empty());
  EXPECT_EQ(found["tensors"].size(), state_of(*build_model(toy_value(), 1)).size());
}

TEST_F(ToyFamily, HasNoTorchScriptForm) {
  const auto model = build_model(toy_value(), 1);
  EXPECT_THAT(test::usage_of([&] { to_torchscript(*model); }),
              HasSubstr("models of the family 'toy' have no TorchScript form"));
}

}  // namespace
}  // namespace moesaic::testing
