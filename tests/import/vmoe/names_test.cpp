// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/reference.h"

#include "import/vmoe/fixture.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic::testing {
namespace {

std::vector<VMoEConfig> configs_of_all_kinds() {
  std::vector<VMoEConfig> list(10, import_config());
  list[1].classifier = "gap";
  list[1].encoder.attention_qk_norm = true;
  list[2].name = kE3;
  list[2].encoder.moe.ensemble_size = 2;
  list[2].representation_size = 7;
  list[3].encoder.moe.layers = {};
  list[4].classifier = "map";
  list[4].encoder.moe.layers = {0};
  list[5].channels = 1;
  list[5].patch_size = 16;
  list[6].patch_size = {4, 8};
  list[6].image_size = {8, 24};
  list[6].num_classes = 0;
  list[7].name = kE3;  // of one member
  list[8].encoder.position_emb.name = kSinCos2d;
  list[8].encoder.moe.mlp_dim = 6;
  list[9].encoder.position_emb.name = kNoPosition;
  list[9].classifier = "0";
  return list;
}

TEST(VMoENames, EveryTensorOfTheNetworkHasItsNameAndShape) {
  for (const VMoEConfig& config : configs_of_all_kinds()) {
    const VMoE model(config, 1);
    TensorMap state = state_of(model);
    for (const VMoETensor& tensor : vmoe_tensors(config)) {
      ASSERT_TRUE(state.contains(tensor.name)) << tensor.name;
      EXPECT_EQ(state.at(tensor.name).sizes().vec(), tensor.shape) << tensor.name;
      state.erase(tensor.name);
    }
    EXPECT_TRUE(state.empty()) << state.begin()->first;
  }
}

/// Written out once more, element by element.
TEST(VMoENames, LayoutsAreTheReferences) {
  VMoEConfig config = import_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = 2;
  const int64_t d = config.hidden_size, heads = 3, c = d / heads;
  const TensorMap arrays = random_arrays(config);
  TensorMap state;
  for (const VMoETensor& tensor : vmoe_tensors(config)) {
    state[tensor.name] =
        tensor_of_arrays(tensor, [&](const VMoEArray& array) { return arrays.at(array.name); });
  }
  const auto at2 = [&](const std::string& name, int64_t i, int64_t j) {
    return state.at(name)[i][j].item<float>();
  };
  const std::string block = "Encoder/encoderblock_1/", own = "blocks.1.";
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t k = 0; k < c; ++k) {
        int64_t part = 0;
        for (const char* name : {"query", "key", "value"}) {
          const at::Tensor kernel = arrays.at(block + "SelfAttention/" + name + "/kernel");
          const at::Tensor bias = arrays.at(block + "SelfAttention/" + name + "/bias");
          const int64_t row = part++ * d + h * c + k;
          ASSERT_EQ(at2(own + "attention.qkv.weight", row, i), kernel[i][h][k].item<float>());
          ASSERT_EQ(state.at(own + "attention.qkv.bias")[row].item<float>(),
                    bias[h][k].item<float>());
        }
        const at::Tensor out = arrays.at(block + "SelfAttention/out/kernel");
        ASSERT_EQ(at2(own + "attention.out.weight", i, h * c + k), out[h][k][i].item<float>());
      }
    }
    for (int64_t expert = 0; expert < 8; ++expert) {
      const at::Tensor router = arrays.at(block + "Moe/Router/dense/kernel");
      ASSERT_EQ(at2(own + "moe.router.weight", expert, i),
                router[i][expert / 4][expert % 4].item<float>());
    }
    for (int64_t j = 0; j < 20; ++j) {
      const at::Tensor dense = arrays.at("Encoder/encoderblock_0/Mlp/Dense_0/kernel");
      ASSERT_EQ(at2("blocks.0.mlp.fc1.weight", j, i), dense[i][j].item<float>());
    }
    for (int64_t y = 0; y < 8; ++y) {
      for (int64_t x = 0; x < 8; ++x) {
        for (int64_t channel = 0; channel < 3; ++channel) {
          ASSERT_EQ(state.at("embedding.weight")[i][channel][y][x].item<float>(),
                    arrays.at("embedding/kernel")[y][x][channel][i].item<float>());
        }
      }
    }
  }
  EXPECT_TRUE(
      torch::equal(state.at(own + "moe.experts.w2"), arrays.at(block + "Moe/Mlp/Dense_1/kernel")));
}

TEST(VMoENames, TheWayBackGivesTheSameArrays) {
  for (const VMoEConfig& config : configs_of_all_kinds()) {
    const TensorMap arrays = random_arrays(config);
    TensorMap state;
    for (const VMoETensor& tensor : vmoe_tensors(config)) {
      state[tensor.name] =
          tensor_of_arrays(tensor, [&](const VMoEArray& array) { return arrays.at(array.name); });
    }
    const VMoEArrays back = arrays_of_network(config, state, "test");
    TensorMap found;
    for (const auto& entry : back.entries) found[entry.name] = back.read(entry);
    expect_equal(found, arrays);
  }
}

TEST(VMoENames, ExpertsThatPruningRemovedAreZeros) {
  VMoEConfig config = import_config();
  config.encoder.moe.kept_experts["3"] = {1, 4};
  const VMoE model(config, 1);
  const VMoEArrays arrays = arrays_of_network(config, state_of(model), "test");
  const std::string name = "Encoder/encoderblock_3/Moe/Mlp/Dense_0/kernel";
  const at::Tensor kernel = arrays.read(*arrays.find(name));
  ASSERT_EQ(kernel.sizes().vec(), (std::vector<int64_t>{8, 12, 20}));
  const at::Tensor held = state_of(model).at("blocks.3.moe.experts.w1");
  EXPECT_TRUE(torch::equal(kernel[1], held[0]));
  EXPECT_TRUE(torch::equal(kernel[4], held[1]));
  EXPECT_EQ(kernel[0].abs().sum().item<float>(), 0.0f);
  EXPECT_EQ(kernel[7].abs().sum().item<float>(), 0.0f);
}

TEST(VMoENames, AnEnsembleOfOneHasItsAxis) {
  VMoEConfig config = import_config();
  const std::string router = "Encoder/encoderblock_1/Moe/Router/dense/kernel";
  EXPECT_EQ(random_arrays(config).at(router).sizes().vec(), (std::vector<int64_t>{12, 8}));
  config.name = kE3;
  EXPECT_EQ(random_arrays(config).at(router).sizes().vec(), (std::vector<int64_t>{12, 1, 8}));
}

}  // namespace
}  // namespace moesaic::testing
