// SPDX-License-Identifier: Apache-2.0
// Against the same networks written with PyTorch's functions; see tests/golden/README.md.
#include "moesaic/nn/image_network.h"

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/nn/init.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

at::Tensor golden_image(const std::string& name) {
  static const TensorMap all =
      read_tensors(MOESAIC_TEST_SOURCE_DIR "/tests/golden/images.safetensors");
  return all.at(name);
}

at::Tensor waves(at::IntArrayRef shape, int64_t phase) {
  const int64_t count = c10::multiply_integers(shape);
  const double start = 1.3 * static_cast<double>(phase) + 0.5;
  return torch::sin(0.37 * torch::arange(count, torch::kDouble) + start).view(shape);
}

/// Parameter n has the values that make_images.py gives it.
void fill(ImageNetwork& network) {
  const torch::NoGradGuard no_grad;
  int64_t n = 0;
  for (const auto& item : network.named_parameters()) {
    at::Tensor value = item.value();
    const bool norm = item.key().find("norm.") != std::string::npos;
    const bool head = item.key().starts_with("head.");
    double offset = 0.0, scale = norm ? 0.2 : 0.1;  // biases
    if (item.key().ends_with("weight")) {
      const double fan_in = static_cast<double>(value.numel() / value.size(0));
      offset = norm ? 1.0 : 0.0;
      scale = norm ? 0.3 : std::sqrt((head ? 1.0 : 2.0) / fan_in);
    }
    value.copy_(offset + scale * waves(value.sizes(), n++));
  }
}

class Networks : public ::testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<ImageNetwork> make(const ImageNetworkOptions& options) {
    return make_image_network(GetParam(), options, make_generator(1));
  }
};

TEST_P(Networks, ForwardGradientsAndRunningStatisticsAreThoseOfPyTorch) {
  const auto network = make({.side = 16, .num_classes = 3, .width = 1.0 / 16});
  network->to(torch::kDouble);
  fill(*network);
  network->train();
  const auto golden = [](const std::string& name) { return golden_image(GetParam() + "/" + name); };
  at::Tensor images = waves({5, 3, 16, 16}, 7).requires_grad_();
  const at::Tensor logits = network->head->forward(network->features(images));
  expect_close(logits, golden("logits"), 1e-10);
  (logits * waves(logits.sizes(), 3)).sum().backward();
  expect_close(images.grad(), golden("input_gradient"), 1e-9);
  std::vector<double> seen;
  for (const at::Tensor& parameter : network->parameters()) {
    seen.push_back(parameter.grad().norm().item<double>());
    seen.push_back((parameter.grad() * waves(parameter.sizes(), 11)).sum().item<double>());
  }
  expect_close(torch::tensor(seen, torch::kDouble).view({-1, 2}), golden("gradients"), 1e-9);
  std::vector<at::Tensor> running;
  for (const auto& item : network->named_buffers()) {
    if (item.value().dim() == 1) running.push_back(item.value());
  }
  if (!running.empty()) expect_close(torch::cat(running), golden("running"), 1e-10);
  network->eval();
  expect_close(network->head->forward(network->features(images)), golden("evaluated"), 1e-9);
}

TEST_P(Networks, HaveTheKnownNumberOfParametersAndOperations) {
  struct Known {
    int64_t parameters;
    double flops;  // counted by make_images.py's networks
  };
  const std::map<std::string, Known> all = {{"cnn", {157578, 41451520.0}},
                                            {"resnet18", {11173962, 1110845440.0}},
                                            {"mobilenetv2", {2296922, 182309888.0}}};
  const auto network = make({});
  int64_t count = 0;
  for (const at::Tensor& parameter : network->parameters()) count += parameter.numel();
  EXPECT_EQ(count, all.at(GetParam()).parameters);
  EXPECT_EQ(network->flops(), all.at(GetParam()).flops);
}

TEST_P(Networks, AreAFunctionOfTheGenerator) {
  const ImageNetworkOptions options{.side = 8, .width = 0.1};
  const auto first = make(options), second = make(options);
  torch::rand({3});  // the global generator has no say
  for (size_t i = 0; i < first->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(first->parameters()[i], second->parameters()[i]));
  }
}

TEST_P(Networks, TrainOnASingleImageWhoseLastMapIsASingleValue) {
  const auto network = make({.side = 4, .num_classes = 2, .width = 0.1});
  network->train();
  const at::Tensor image = randn({1, 3, 4, 4}, 3, torch::kFloat);
  network->head->forward(network->features(image)).sum().backward();
  for (const at::Tensor& parameter : network->parameters()) {
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
  for (const at::Tensor& buffer : network->buffers()) {
    EXPECT_TRUE(buffer.isfinite().all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Networks, ::testing::ValuesIn(image_network_names()),
                         [](const auto& info) { return info.param; });

TEST(ImageNetwork, AnUnknownNameGetsTheNearestOne) {
  EXPECT_THAT(test::usage_of([] { make_image_network("resnet81", {}, make_generator(1)); }),
              HasSubstr("did you mean 'resnet18'"));
}

}  // namespace
}  // namespace moesaic::nn
