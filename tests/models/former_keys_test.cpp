// SPDX-License-Identifier: Apache-2.0
// Networks' settings as earlier versions spell them.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/module_state.h"
#include "support/matchers.h"
#include "support/warnings.h"

namespace moesaic {
namespace {

using ::testing::SizeIs;
using testing::Warnings;

struct Spelling {
  std::string former, present;
  size_t renamed;  ///< Number of former keys.
};

/// A network of each family, by its former and its present keys.
const std::vector<Spelling>& spellings() {
  static const std::vector<Spelling> list = {
      {R"({"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 6, "classes": 3,
           "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 5,
                       "moe": {"layers": [1], "num_experts": 4, "group_images": 2,
                               "router": {"pruned": "reroute"}}}})",
       R"({"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 6, "num_classes": 3,
           "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 5,
                       "moe": {"layers": [1], "num_experts": 4, "num_group_images": 2,
                               "router": {"pruned_selection": "reroute"}}}})",
       3},
      {R"({"name": "cluster-moe", "patches": 3, "width": 6, "classes": 2, "experts": 5, "filters": 4,
           "scalar": false, "router": {"pruned": "reroute"}})",
       R"({"name": "cluster-moe", "num_patches": 3, "width": 6, "num_classes": 2, "num_experts": 5,
           "num_filters": 4, "has_scalar_output": false,
           "router": {"pruned_selection": "reroute"}})",
       6},
      {R"({"name": "image-moe", "experts": 3, "classes": 7, "width": 0.1,
           "router": {"pruned": "reroute"}})",
       R"({"name": "image-moe", "num_experts": 3, "num_classes": 7, "width": 0.1,
           "router": {"pruned_selection": "reroute"}})",
       3},
      {R"({"name": "gated-moe", "experts": 3})", R"({"name": "gated-moe", "num_experts": 3})", 1},
      {R"({"name": "gru", "classes": 3, "steps": 4, "width": 5, "hidden": 6})",
       R"({"name": "gru", "num_classes": 3, "num_steps": 4, "input_size": 5, "hidden_size": 6})",
       4},
      {R"({"name": "latent-moe", "width": 6, "experts": 3, "hidden": 7, "bias": 0.5})",
       R"({"name": "latent-moe", "width": 6, "num_experts": 3, "num_neurons": 7, "max_bias": 0.5})",
       3},
      {R"({"name": "pattern-moe", "patterns": 12, "tokens": 8, "experts": 4, "selected": 3,
           "hidden": 6})",
       R"({"name": "pattern-moe", "num_patterns": 12, "num_tokens": 8, "num_experts": 4,
           "num_selected_tokens": 3, "num_neurons": 6})",
       5},
      {R"({"name": "pmoe", "classes": 3, "experts": 6, "hidden": 4, "router": {"selected": 2}})",
       R"({"name": "pmoe", "num_classes": 3, "num_experts": 6, "num_neurons": 4,
           "router": {"num_selected_patches": 2}})",
       4},
      {R"({"name": "wrn-pmoe", "classes": 3, "blocks": 2, "widening": 0.5,
           "moe": {"experts": 2, "kernel": 3, "router": {"selected": 5}}})",
       R"({"name": "wrn-pmoe", "num_classes": 3, "num_blocks": 2, "widen_factor": 0.5,
           "moe": {"num_experts": 2, "kernel_size": 3, "router": {"num_selected_patches": 5}}})",
       6},
  };
  return list;
}

Json built(const Value& config) {
  return build_meta_model(config)->config();
}

TEST(FormerKeys, OfARecipeMeanThePresentOnesWithAWarningForEach) {
  for (const Spelling& one : spellings()) {
    const Json present = built(Document::from_text(one.present, "present.json").root());
    const Warnings warnings;
    EXPECT_EQ(built(Document::from_text(one.former, one.former).root()), present) << one.former;
    EXPECT_THAT(warnings.texts(), SizeIs(one.renamed)) << one.former;
    for (const std::string& text : warnings.texts()) EXPECT_THAT(text, HasSubstr(" is called "));
  }
}

TEST(FormerKeys, OfAnArgumentOverridePresentOnes) {
  for (const Spelling& one : spellings()) {
    Document document = Document::from_text(one.present, "present.json");
    const Json family = Json::parse(one.present);
    if (!family.contains("num_classes")) continue;
    const int64_t classes = family.at("name") == "cluster-moe" ? 4 : 2;
    document.set("classes=" + std::to_string(classes));
    const Warnings warnings;
    EXPECT_EQ(built(document.root()).at("num_classes"), classes) << one.present;
  }
}

TEST(FormerKeys, OfAStoredConfigurationAreReadInSilence) {
  const Warnings warnings;
  for (const Spelling& one : spellings()) {
    EXPECT_EQ(built(parse_stored(one.former, "config.json")),
              built(parse_stored(one.present, "config.json")));
  }
  EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST(FormerKeys, OfACheckpointAreReadInSilence) {
  const test::TempDir folder;
  const Spelling& vmoe = spellings().front();
  const auto model = build_model(parse_stored(vmoe.present, "x"), 5);
  const Json config = Json::parse(vmoe.former);
  save_checkpoint(folder / "older", {{{"model", config}}, Json::object(), state_of(*model), {}});
  const Warnings warnings;
  const auto loaded = load_model(folder / "older");
  EXPECT_EQ(loaded->config(), model->config());
  EXPECT_TRUE(at::equal(loaded->named_parameters()["head.weight"],
                        model->named_parameters()["head.weight"]));
  EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST(FormerKeys, BesideThePresentOnesAreRefused) {
  const Value both =
      Document::from_text(R"({"name": "gated-moe", "experts": 3, "num_experts": 3})", "both.json")
          .root();
  EXPECT_THAT(test::usage_of([&] { build_meta_model(both); }),
              AllOf(HasSubstr("experts' is the former name of"), HasSubstr("num_experts'"),
                    HasSubstr("leave it out")));
}

}  // namespace
}  // namespace moesaic
