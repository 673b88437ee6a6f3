// SPDX-License-Identifier: Apache-2.0
// V-MoE's settings, with the names and the nesting of the reference implementation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

struct VMoEDispatcherConfig {
  double capacity_factor = 0.0;
};
template <class Fields>
void describe(Fields& f, VMoEDispatcherConfig& c) {
  f("capacity_factor", c.capacity_factor,
    "rows of an expert over its fair share; 0: no token is ever dropped", at_least(0.0));
}

struct VMoERouterConfig {
  int64_t num_selected_experts = 2;
  std::string gate = "softmax_all";
  VMoEDispatcherConfig dispatcher;
};
template <class Fields>
void describe(Fields& f, VMoERouterConfig& c) {
  f("num_selected_experts", c.num_selected_experts, "experts that a token selects", at_least(1));
  f("gate", c.gate, "softmax over all experts, or over the selected ones",
    one_of({"softmax_all", "softmax_selected"}));
  f("dispatcher", c.dispatcher, "how selected tokens reach the experts");
}

struct VMoEMoeConfig {
  std::vector<int64_t> layers;
  int64_t num_experts = 8;
  int64_t group_size = 0;
  VMoERouterConfig router;
  std::map<std::string, std::vector<int64_t>> kept_experts;
};
template <class Fields>
void describe(Fields& f, VMoEMoeConfig& c) {
  f("layers", c.layers, "blocks whose perceptron is a mixture of experts", at_least(0));
  f("num_experts", c.num_experts, "experts a layer", at_least(1));
  f("group_size", c.group_size, "tokens that share a capacity; 0: all of a batch", at_least(0));
  f("router", c.router, "how tokens select experts");
  f("kept_experts", c.kept_experts, "block: the experts that pruning left; absent: all");
}

struct VMoEEncoderConfig {
  int64_t num_layers = 4, num_heads = 4, mlp_dim = 384;
  VMoEMoeConfig moe;
};
template <class Fields>
void describe(Fields& f, VMoEEncoderConfig& c) {
  f("num_layers", c.num_layers, "transformer blocks", at_least(1));
  f("num_heads", c.num_heads, "attention heads", at_least(1));
  f("mlp_dim", c.mlp_dim, "hidden width of perceptrons and experts", at_least(1));
  f("moe", c.moe, "the mixture-of-experts layers");
}

struct VMoEConfig {
  std::string name = "vmoe";
  int64_t image_size = 28, channels = 1, patch_size = 7, hidden_size = 96, classes = 10;
  std::string classifier = "token";
  VMoEEncoderConfig encoder;

  int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
  int64_t tokens() const { return patches() + (classifier == "token" ? 1 : 0); }
};
template <class Fields>
void describe(Fields& f, VMoEConfig& c) {
  f("name", c.name, "model family", required, one_of({"vmoe"}));
  f("image_size", c.image_size, "height and width of the pictures, pixels", at_least(1));
  f("channels", c.channels, "colour channels of the pictures", at_least(1));
  f("patch_size", c.patch_size, "height and width of a patch, pixels", at_least(1));
  f("hidden_size", c.hidden_size, "width of a token", at_least(1));
  f("classes", c.classes, "outputs of the head", at_least(1));
  f("classifier", c.classifier, "what the head sees: a class token, or the mean of all tokens",
    one_of({"token", "gap"}));
  f("encoder", c.encoder, "the transformer");
}

/// What one setting alone does not show, e.g. a patch size that does not divide the image size; ""
/// if all fits.
std::string config_problem(const VMoEConfig& config);

}  // namespace moesaic
