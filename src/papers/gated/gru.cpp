// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated/gru.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

nn::GruView view_of(const GruConfig& config) {
  return config.view == nn::kGruViewNames.front() ? nn::GruView::mixture : nn::GruView::recurrent;
}

constexpr char kSteps[] = R"(
def forward(self, x: Tensor) -> Tensor:
    inputs = torch.linear(x, self.weight_ih, self.bias_ih)
    h = torch.zeros([x.size(0), self.weight_hh.size(1)], dtype=x.dtype, device=x.device)
    for t in range(x.size(1)):
        a = torch.chunk(inputs.select(1, t), 3, 1)
        b = torch.chunk(torch.linear(h, self.weight_hh, self.bias_hh), 3, 1)
        r = torch.sigmoid(a[0] + b[0])
        z = torch.sigmoid(-(a[1] + b[1]))
)";
constexpr char kMixtureCandidate[] =
    "        c = torch.lerp(torch.tanh(a[2]), torch.tanh(a[2] + b[2]), r)\n";
constexpr char kRecurrent[] = "        c = torch.tanh(a[2] + r * b[2])\n";
constexpr char kUpdate[] = "        h = torch.lerp(h, c, z)\n    return h\n";

}  // namespace

Gru::Gru(GruConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  gru = register_module("gru",
                        nn::GruMixture(config_.width, config_.hidden, view_of(config_), generator));
  head = register_module("head", torch::nn::Linear(config_.hidden, config_.classes));
  nn::xavier_uniform(head->weight, generator);
  torch::nn::init::zeros_(head->bias);
}

ModelOutput Gru::forward(const at::Tensor& images_BCHW, const at::Generator&) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  const at::Tensor last = gru->forward(images_BCHW.squeeze(1)).states.select(1, -1);
  return {head->forward(last), last, {}};
}

void Gru::reset_head(int64_t classes) {
  config_.classes = classes;
  head = replace_module("head", torch::nn::Linear(config_.hidden, classes));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : head->parameters()) parameter.zero_();
}

double Gru::flops_per_image(const RowsPerToken&) const {
  const auto steps = static_cast<double>(config_.steps), m = static_cast<double>(config_.hidden);
  return 2.0 * m *
         (3.0 * steps * (static_cast<double>(config_.width) + m) +
          static_cast<double>(config_.classes));
}

std::optional<torch::jit::Module> Gru::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string candidate =
      gru->view() == nn::GruView::mixture ? kMixtureCandidate : kRecurrent;
  return script::make_module(
      unit, "Gru", *this,
      {{"gru", script::make_module(unit, "GruMixture", *gru, {}, kSteps + candidate + kUpdate)},
       {"head", script::make_linear(unit, *head)}},
      script::entrance(input_shape()) +
          "    return self.head.forward(self.gru.forward(images.squeeze(1)))\n");
}

std::map<std::string, at::Tensor> Gru::gates_over_time(const at::Tensor& images_BCHW) const {
  const nn::GruStates out = gru->forward(images_BCHW.squeeze(1));
  return {{"update", out.update.mean(2)}, {"reset", out.reset.mean(2)}};
}

}  // namespace moesaic
