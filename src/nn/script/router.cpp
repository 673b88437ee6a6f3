// SPDX-License-Identifier: Apache-2.0
// TorchScript form of nn/router.h.
#include <fmt/format.h>

#include "moesaic/base/random.h"
#include "parts.h"

namespace moesaic::script {
namespace {

constexpr char kRouter[] = R"(
def forward(self, x: Tensor) -> Tensor:
    logits = torch.mm(x, self.weight.t())
)";

// Token t is of member t % M, expert e of member e / (E / M).
constexpr char kOwnExperts[] = R"(
    member = torch.remainder(torch.arange(x.size(0), device=x.device), {members}).unsqueeze(1)
    owner = torch.floor_divide(torch.arange({experts}, device=x.device), {each})
    logits = logits.masked_fill(member != owner, float("-inf"))
)";

// Noise of token t is that of CounterRng at position t: Philox4x32-10 on words of 32 bits, two
// numbers from [0, 1) for each count of blocks. TorchScript names a dtype only by its number.
constexpr char kNoise[] = R"(
def noise(self, logits: Tensor) -> Tensor:
    block = torch.arange({blocks}, device=logits.device)
    position = torch.arange(logits.size(0), device=logits.device).unsqueeze(1)
    w0, w2 = block + torch.zeros_like(position), position + torch.zeros_like(block)
    w1, w3 = torch.zeros_like(w0), torch.zeros_like(w0)
    key0, key1 = {key0}, {key1}
    for i in range(10):
        a, b = w0 * 3528531795, w2 * 3449720151
        w0 = (torch.bitwise_right_shift(b, 32) & 4294967295) ^ w1 ^ key0
        w2 = (torch.bitwise_right_shift(a, 32) & 4294967295) ^ w3 ^ key1
        w1, w3 = b & 4294967295, a & 4294967295
        key0, key1 = (key0 + 2654435769) & 4294967295, (key1 + 3144134277) & 4294967295
    u = (w1 * 2097152 + torch.bitwise_right_shift(w0, 11)).to({float64}) / 9007199254740992.0
    v = (w3 * 2097152 + torch.bitwise_right_shift(w2, 11)).to({float64}) / 9007199254740992.0
    {transform}
    noise = {scale} * torch.stack([u, v], 2).flatten(1)[:, :{each}]
    return noise.to({float32}).to(logits.dtype).repeat([1, {members}])
)";

// Box and Muller.
constexpr char kNormal[] =
    "radius, angle = torch.sqrt(-2.0 * torch.log(1.0 - u)), 6.283185307179586 * v\n"
    "    u, v = radius * torch.cos(angle), radius * torch.sin(angle)";

std::string noise_source(const nn::RouterOptions& options) {
  const int64_t each = options.experts / options.members;
  const bool gaussian = options.noise.kind == NoiseKind::gaussian;
  // The key of CounterRng's stream.
  const uint64_t key =
      mix64(*options.evaluation_seed + mix64(stream_id(nn::kEvaluationNoiseStream)));
  const double scale = gaussian ? gaussian_noise_std(options.noise, each) : options.noise.scale;
  return fmt::format(kNoise, fmt::arg("blocks", (each + 1) / 2), fmt::arg("key0", key & 0xFFFFFFFF),
                     fmt::arg("key1", key >> 32),
                     fmt::arg("transform", gaussian ? kNormal : "# they are uniform already"),
                     fmt::arg("scale", literal(scale)), fmt::arg("each", each),
                     fmt::arg("members", options.members),
                     fmt::arg("float64", static_cast<int>(at::kDouble)),
                     fmt::arg("float32", static_cast<int>(at::kFloat)));
}

}  // namespace

Module make_router(const Unit& unit, const nn::RouterImpl& from) {
  const nn::RouterOptions& options = from.options();
  std::string source = kRouter;
  if (options.members > 1) {
    source += fmt::format(kOwnExperts, fmt::arg("members", options.members),
                          fmt::arg("experts", options.experts),
                          fmt::arg("each", options.experts / options.members));
  }
  const bool noisy = options.evaluation_seed && options.noise.scale > 0.0;
  source += noisy ? "    return logits + self.noise(logits)\n" + noise_source(options)
                  : "    return logits\n";
  return make_module(unit, "Router", from, {}, source);
}

}  // namespace moesaic::script
