// SPDX-License-Identifier: Apache-2.0
#include "scaling_bytes.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/pattern.h"
#include "moesaic/base/text.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/parallel/equal_parts.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/optimizer.h"

namespace moesaic {
namespace {

constexpr double kFloat = sizeof(float);
// Loss, accuracy, gradient norm, flags of a step that is not finite or of a signal.
constexpr double kMetricBytes = 10 * sizeof(double);
// c10d::Reducer's default.
constexpr double kBucketBytes = 25 * 1024 * 1024;

/// Names of the parameters that belong to one expert or another, and of nothing else.
std::set<std::string> expert_parameters(const Model& model) {
  std::set<const void*> tensors;
  for (const MoEBlock& block : model.moe_blocks()) {
    for (const at::Tensor& tensor : block.layer->experts->parameters()) {
      tensors.insert(tensor.unsafeGetTensorImpl());
    }
  }
  std::set<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (tensors.contains(item.value().unsafeGetTensorImpl())) names.insert(item.key());
  }
  return names;
}

/// Channels of batch norms and their number.
struct NormChannels {
  double channels = 0.0, norms = 0.0;
};

NormChannels norm_channels(const torch::nn::Module& root) {
  NormChannels found;
  for (const auto& item : root.named_buffers()) {
    if (!item.key().ends_with("running_mean")) continue;
    found.channels += static_cast<double>(item.value().numel());
    found.norms += 1.0;
  }
  return found;
}

void check_expert_groups(const Model& model, const ProcessMesh& mesh) {
  int64_t common = mesh.processes;
  for (const MoEBlock& block : model.moe_blocks()) {
    common = std::gcd(common, block.layer->experts->count());
  }
  const int64_t choice = nearest_divisor(common, mesh.experts);
  for (const MoEBlock& block : model.moe_blocks()) {
    const int64_t experts = block.layer->experts->count();
    if (experts % mesh.experts == 0) continue;
    fail_usage("{} cannot share the {} of block {} in equal parts; choose {}",
               count_text(mesh.experts, "process"), count_text(experts, "expert"), block.block,
               choice);
  }
  if (mesh.processes % mesh.experts == 0) return;
  fail_usage("{} cannot be parted into groups of {} that share experts; choose {}",
             count_text(mesh.processes, "process"), mesh.experts, choice);
}

/// Adds up the collectives of a step.
class Traffic {
 public:
  explicit Traffic(const ProcessMesh& mesh) : mesh_(mesh) {}

  /// `bytes` are those of the tensors that are summed up, in all calls together.
  void all_reduce(const std::string& name, bool of_experts, double calls, double bytes) {
    const int64_t group = of_experts ? mesh_.replicas() : mesh_.processes;
    add({.name = name,
         .kind = CollectiveKind::all_reduce,
         .group = group,
         .stride = of_experts ? mesh_.experts : 1,
         .calls = calls,
         .bytes = 2.0 * share_of_others(group) * bytes});
  }

  /// `bytes` are those of the tensors that every process has in the end, or every one of those that
  /// share experts.
  void all_gather(const std::string& name, bool of_sharers, double calls, double bytes) {
    const int64_t group = of_sharers ? mesh_.experts : mesh_.processes;
    add({.name = name,
         .kind = CollectiveKind::all_gather,
         .group = group,
         .calls = calls,
         .bytes = share_of_others(group) * bytes});
  }

  /// `bytes` are those of the rows of a process, of which as many stay as go to each other one.
  void all_to_all(const std::string& name, double calls, double bytes) {
    add({.name = name,
         .kind = CollectiveKind::all_to_all,
         .group = mesh_.experts,
         .calls = calls,
         .bytes = share_of_others(mesh_.experts) * bytes});
  }

  std::vector<Collective> take() { return std::move(collectives_); }

 private:
  static double share_of_others(int64_t group) {
    return static_cast<double>(group - 1) / static_cast<double>(group);
  }
  void add(Collective collective) {
    if (collective.bytes > 0.0) collectives_.push_back(std::move(collective));
  }

  ProcessMesh mesh_;
  std::vector<Collective> collectives_;
};

void add_gradients(Traffic& traffic, const Model& model, const PhasePlan& phase,
                   const ProcessMesh& mesh) {
  SplitBytes gradients = gradient_bytes(model, phase.config);
  gradients.experts /= static_cast<double>(mesh.experts);
  // The mean of the parts' gradients is reduced, so that parts cost nothing here.
  const auto buckets = [](double bytes) { return std::max(1.0, std::ceil(bytes / kBucketBytes)); };
  traffic.all_reduce("gradients", false, buckets(gradients.dense), gradients.dense);
  traffic.all_reduce("expert_gradients", true, buckets(gradients.experts), gradients.experts);
}

void add_routing(Traffic& traffic, Model& model, const PhasePlan& phase, const ProcessMesh& mesh) {
  const auto images = static_cast<double>(phase.batch);
  const auto parts = static_cast<double>(parts_of_batch(phase));
  const double local = images / static_cast<double>(mesh.processes);
  const double forwards = phase.recompute ? 2.0 : 1.0;
  double layers = 0.0, together = 0.0, logits = 0.0, rows = 0.0, exchanges = 0.0, counts = 0.0;
  for (const RoutedLayer& layer : routed_layers(model, phase, mesh)) {
    layers += 1.0;
    // Backward sends the gradients of the outputs there and those of the inputs back.
    const double passes = forwards + 1.0, of_inputs = layer.learns ? passes : forwards;
    rows += (layer.there * of_inputs + layer.back * passes) * local * row_number_bytes(phase);
    exchanges += of_inputs + passes;
    if (layer.alone) {
      counts += layer.experts * parts * sizeof(int64_t);
    } else {
      together += 1.0;
      logits += layer.logits * images * kFloat;
    }
  }
  traffic.all_gather("logits", false, together * parts * forwards, logits * forwards);
  traffic.all_reduce("logits_gradient", false, together * parts, logits);
  traffic.all_gather("row_counts", true, (layers - together) * parts * forwards,
                     static_cast<double>(mesh.experts) * counts * forwards);
  traffic.all_to_all("rows", parts * exchanges, rows);
}

void add_norms(Traffic& traffic, const Model& model, const PhasePlan& phase,
               const ProcessMesh& mesh) {
  NormChannels all = norm_channels(model), of_experts;
  for (const MoEBlock& block : model.moe_blocks()) {
    const NormChannels found = norm_channels(*block.layer->experts);
    of_experts.channels += found.channels;
    of_experts.norms += found.norms;
  }
  const auto parts = static_cast<double>(parts_of_batch(phase));
  // Two numbers of a channel, in forward and in backward.
  const auto add = [&](const char* name, bool experts, const NormChannels& norms, double share) {
    traffic.all_reduce(name, experts, 2.0 * parts * norms.norms * share,
                       2.0 * parts * 2.0 * kFloat * norms.channels * share);
  };
  all.channels -= of_experts.channels;
  all.norms -= of_experts.norms;
  add("batch_norm", false, all, 1.0);
  add("expert_batch_norm", true, of_experts, 1.0 / static_cast<double>(mesh.experts));
}

/// Returns the bytes of the parameters that are not frozen.
SplitBytes updated_bytes(const Model& model, const PhaseConfig& phase) {
  const std::vector<std::string> names = trained_parameters(model, phase);
  const std::set<std::string> updated(names.begin(), names.end());
  return parameter_bytes(model, [&](const std::string& name) { return updated.contains(name); });
}

}  // namespace

SplitBytes parameter_bytes(const Model& model,
                           const std::function<bool(const std::string&)>& counts) {
  const std::set<std::string> experts = expert_parameters(model);
  SplitBytes sum;
  for (const auto& item : model.named_parameters()) {
    if (!counts(item.key())) continue;
    const double bytes = kFloat * static_cast<double>(item.value().numel());
    (experts.contains(item.key()) ? sum.experts : sum.dense) += bytes;
  }
  return sum;
}

SplitBytes gradient_bytes(const Model& model, const PhaseConfig& phase) {
  const Patterns trains(phase.trains);
  return parameter_bytes(model, [&](const std::string& name) { return trains.any_found_in(name); });
}

SplitBytes optimizer_state_bytes(const Model& model, const PhaseConfig& phase) {
  const PhaseKind& kind = phase_kinds().at(phase.kind.name());
  const double all = kind.memory(phase, model).optimizer;
  PhaseConfig dense = phase;
  for (const std::string& name : expert_parameters(model)) dense.frozen.push_back("^" + name + "$");
  const double of_dense = kind.memory(dense, model).optimizer;
  return {.dense = of_dense, .experts = all - of_dense};
}

UpdateBytes update_bytes(const Model& model, const PhaseConfig& phase, const ProcessMesh& mesh) {
  const SplitBytes state = optimizer_state_bytes(model, phase);
  const SplitBytes updated = updated_bytes(model, phase);
  if (!mesh.shard_optimizer) return {state.of_process(mesh), updated.of_process(mesh)};
  const auto& config = settings_of<GradientConfig>(phase);
  const auto parameters = model.named_parameters();
  Optimizer::NamedParameters trained;
  for (const std::string& name : trained_parameters(model, phase)) {
    trained.emplace_back(name, parameters[name]);
  }
  const std::set<std::string> experts = expert_parameters(model);
  const bool shared = mesh.experts > 1;
  const Optimizer::Share share =
      Optimizer(std::move(trained), config.optimizer, /*frozen=*/{}, config.optimizers)
          .largest_share(mesh.processes,
                         [&](const std::string& name) { return shared && experts.contains(name); });
  const auto bytes = [&](int64_t numbers, double of_experts) {
    return kFloat * static_cast<double>(numbers) +
           (shared ? of_experts / static_cast<double>(mesh.experts) : 0.0);
  };
  return {bytes(share.state, state.experts), bytes(share.updated, updated.experts)};
}

std::vector<RoutedLayer> routed_layers(Model& model, const PhasePlan& phase,
                                       const ProcessMesh& mesh) {
  const int64_t of_part =
      phase.batch / parts_of_batch(phase) / mesh.processes * model.tokens_per_image();
  const auto tokens = static_cast<double>(model.tokens_per_image());
  const RowsPerToken rows = even_rows_per_token(model);
  std::vector<MoEBlock> blocks = model.moe_blocks();
  std::vector<RoutedLayer> layers(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const nn::RouterOptions& options = blocks[i].layer->options();
    const nn::Experts& experts = *blocks[i].layer->experts;
    const double of_rows = tokens * rows.at(blocks[i].block);
    const bool all_tokens = experts.sharing() == nn::Sharing::side_by_side;
    // Every process takes all tokens there, or each row goes to one.
    const double there = all_tokens ? tokens * static_cast<double>(mesh.experts) : of_rows;
    const double back =
        (all_tokens ? tokens : of_rows) * static_cast<double>(experts.token_outputs());
    layers[i] = {.logits = tokens * static_cast<double>(options.experts),
                 .rows = of_rows,
                 .there = there * static_cast<double>(options.width),
                 .back = back,
                 .experts = static_cast<double>(experts.count()),
                 .alone = !(all_tokens && mesh.experts > 1) &&
                          blocks[i].layer->router->routes_alone(of_part),
                 .noisy = options.noise.scale > 0.0};
    // Experts may take more than what the router sees of a token.
    blocks[i].layer->observe([&layer = layers[i], there](const auto&, const at::Tensor& x) {
      layer.there = there * static_cast<double>(x.numel()) / static_cast<double>(x.size(0));
      layer.learns = x.requires_grad();
    });
  }
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), phase.batch / parts_of_batch(phase));
  const MetaKernels kernels;
  model.train();
  try {
    model.forward(at::empty(shape, at::device(at::kMeta).dtype(at::kFloat)));
  } catch (const std::exception&) {  // Shapes are unknown: what the router sees must do.
  }
  for (MoEBlock& block : blocks) block.layer->observe({});
  return layers;
}

int64_t parts_of_batch(const PhasePlan& phase) {
  return settings_of<GradientConfig>(phase.config).accumulate;
}

double row_number_bytes(const PhasePlan& phase) {
  return phase.precision == "bfloat16" ? 2.0 : kFloat;
}

void check_mesh(const Model& model, const PhasePlan& phase, const ProcessMesh& mesh) {
  if (mesh.processes < 1 || mesh.experts < 1) fail_usage("there must be one process at least");
  if (mesh.experts > 1 && model.moe_blocks().empty()) {
    fail_usage("{} cannot share experts: the network has none that tokens are routed to",
               count_text(mesh.experts, "process"));
  }
  check_expert_groups(model, mesh);
  check_equal_parts(fmt::format("phase '{}': ", phase.config.name), phase.batch,
                    parts_of_batch(phase), mesh.processes);
}

std::vector<Collective> step_collectives(Model& model, const PhasePlan& phase,
                                         const ProcessMesh& mesh) {
  check_mesh(model, phase, mesh);
  Traffic traffic(mesh);
  add_gradients(traffic, model, phase, mesh);
  add_routing(traffic, model, phase, mesh);
  add_norms(traffic, model, phase, mesh);
  traffic.all_reduce("metrics", false, 1.0, kMetricBytes);
  if (mesh.shard_optimizer) {
    const SplitBytes updated = updated_bytes(model, phase.config);
    traffic.all_gather("parameters", false, 1.0, updated.held_alike(mesh).dense);
  }
  return traffic.take();
}

}  // namespace moesaic
