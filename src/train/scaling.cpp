// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/distributed_run.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

// Datasheets give links as the sum of both directions; here it is one. Networks are those of the
// vendor's own nodes, one port a GPU: 200 Gbit/s for a100, 400 Gbit/s from Hopper on; of L40S there
// is no such node, so 200 Gbit/s is a guess, and what links its GPUs is PCIe.
Registry<Gpu>& gpus() {
  static Registry<Gpu> registry("GPU",
                                {{"a100", {19.5e12, 156e12, 312e12, 80e9, 2.039e12, 300e9, 25e9}},
                                 {"h100", {67e12, 494.7e12, 989.4e12, 80e9, 3.35e12, 450e9, 50e9}},
                                 {"h200", {67e12, 494.7e12, 989.4e12, 141e9, 4.8e12, 450e9, 50e9}},
                                 {"b200", {75e12, 1125e12, 2250e12, 180e9, 7.7e12, 900e9, 50e9}},
                                 {"l40s", {91.6e12, 183e12, 362e12, 48e9, 0.864e12, 32e9, 25e9}}});
  return registry;
}

namespace {

double number(int64_t count) {
  return static_cast<double>(count);
}

/// A step of one process on the meta device.
struct CountedStep {
  ScalingPlan plan;      ///< Without times.
  double updated = 0.0;  ///< Bytes of the parameters that the process updates.
  /// Logits that a forward pass of a part routes, those of the process' own tokens among them, and
  /// numbers of noise that are drawn for other tokens.
  double logits = 0.0, member_logits = 0.0, noise = 0.0;
  /// Bytes of buffers: others' logits and rows, others' noise, numbers on their way to experts.
  double others = 0.0, most_noise = 0.0, under_way = 0.0;
};

/// Returns what a step sends, of which one of its micro-batches was counted.
std::vector<Collective> collectives_of(const ProcessMesh& processes, double num_micro_batches) {
  std::vector<Collective> list;
  for (const ProcessGroup* group : {&processes.gradient_group(), &processes.world(),
                                    &processes.expert_group(), &processes.replica_group()}) {
    const bool of_experts = group == &processes.replica_group();
    for (const auto& [traffic, sent] : group->counter().take()) {
      if (sent.bytes == 0.0) continue;
      const bool each_micro_batch = traffic >= Traffic::logits && traffic <= Traffic::batch_norm;
      const double times = each_micro_batch ? num_micro_batches : 1.0;
      const char* const whose = of_experts && traffic == Traffic::batch_norm ? "expert_" : "";
      list.push_back({whose + traffic_name(traffic), traffic, group->size(),
                      of_experts ? processes.expert_group().size() : 1, times * number(sent.calls),
                      times * sent.bytes});
    }
  }
  std::ranges::stable_sort(list, {}, &Collective::traffic);
  return list;
}

/// Adds what a layer routes in a forward pass.
void count_layer(const nn::MoELayerImpl& layer, const RoutingRecord& record, const at::Tensor& x,
                 const PhasePlan& phase, const ProcessMesh& processes, CountedStep& step) {
  const double shards = record.is_local ? 1.0 : number(processes.size());
  const double sharing = number(processes.expert_group().size()), tokens = number(x.size(0));
  const double logits = number(record.logits_TE.numel()), rows = number(record.routing.max_rows());
  const bool draws = record.is_local && layer.options().noise.scale > 0.0;
  const double drawn = draws ? logits * number(processes.size() - 1) : 0.0;
  step.logits += logits;
  step.member_logits += logits / shards;
  step.noise += drawn;
  step.most_noise = std::max(step.most_noise, 4.0 * drawn);
  // Logits, what the gates are computed from, and token, row and gate of each row.
  const double others = (2.0 * 4.0 * logits + 12.0 * rows) * (1.0 - 1.0 / shards);
  step.others =
      phase.activation_checkpointing ? std::max(step.others, others) : step.others + others;
  if (sharing == 1.0) return;
  const bool to_all = layer.experts->expert_parallel() == nn::ExpertParallel::all_gather;
  const double sent = to_all ? tokens * sharing : rows / shards;
  const double values = number(x.numel()) / tokens + number(layer.experts->num_token_outputs());
  step.under_way =
      std::max(step.under_way, sent * values * (phase.precision == "bfloat16" ? 2.0 : 4.0));
}

CountedStep count_step(Model& model, const PhasePlan& phase, int64_t size,
                       const ParallelConfig& parallel) {
  const auto& config = settings_of<GradientConfig>(phase.config);
  std::vector<MoEBlock> blocks = model.moe_blocks();
  if (parallel.expert_parallel_size > 1 && blocks.empty()) {
    fail_usage("parallel.expert_parallel_size: the network has no routed experts; choose 1");
  }
  for (const MoEBlock& block : blocks)
    block.layer->experts->check_shards(parallel.expert_parallel_size);
  check_batch_divisible(fmt::format("phase '{}': ", phase.config.name), phase.batch_size,
                        config.gradient_accumulation_steps, size);
  const auto processes = ProcessMesh::make_fake(size, parallel);
  CountedStep step;
  TrainingMemory& memory = step.plan.memory;
  step.plan.num_images = phase.batch_size / size;
  shard_experts(model, processes);
  nn::set_batch_shard(model, {processes});
  for (MoEBlock& block : blocks) {
    // Where nobody shares the experts, all processes are replicas of them.
    nn::set_batch_shard(*block.layer->experts, {processes, true, /*is_expert_parallel=*/true});
    block.layer->set_observer([&, layer = block.layer.get()](const auto& record, const auto& x) {
      count_layer(*layer, record, x, phase, *processes, step);
    });
  }
  const auto trained = choose_parameters(model, phase.config);
  Optimizer optimizer(trained, config.optimizer, phase.config.frozen, config.optimizers);
  if (parallel.shard_optimizer) {
    const ExpertShards shares(model);
    optimizer.shard_state(processes, [&](const std::string& name) { return shares.has(name); });
  }
  memory.optimizer = 4.0 * number(optimizer.max_state_shard().state);
  step.updated = 4.0 * number(optimizer.max_state_shard().updated);
  memory.weights = 4.0 * number(model.num_parameters());
  std::vector<at::Tensor> dense, experts;
  for (const auto& [name, parameter] : trained) {
    memory.gradients += 4.0 * number(parameter.numel());
    (is_expert_parameter(name) ? experts : dense).push_back(parameter);
  }
  if (config.ema_decay > 0.0) memory.optimizer += memory.gradients;
  const MetaKernels kernels;
  model.train();
  model.set_activation_checkpointing(phase.activation_checkpointing);
  try {
    const Autocast autocast(phase.precision, at::kCPU);
    const int64_t images = step.plan.num_images / config.gradient_accumulation_steps;
    const at::Tensor loss = model.forward(meta_inputs(model, images)).logits.sum();
    for (MoEBlock& block : blocks) block.layer->set_observer({});
    if (loss.requires_grad()) loss.backward();
  } catch (const std::exception& error) {  // An operator may have no shape function.
    log_warning("phase '{}': what its layers send is not known: {}", phase.config.name,
                one_line(error.what(), 120));
  }
  for (MoEBlock& block : blocks) block.layer->set_observer({});
  GradientReducer(dense, processes->gradient_group(), Traffic::gradients).prepare({});
  GradientReducer(experts, processes->replica_group(), Traffic::expert_gradients).prepare({});
  // Losses, accuracy, gradient norm, and flags of a step that is not finite or of a signal.
  const at::Tensor metrics = at::empty({10}, at::device(at::kMeta).dtype(at::kDouble));
  processes->world().all_reduce(metrics, Traffic::metrics);
  if (parallel.shard_optimizer) optimizer.broadcast_parameters();
  step.plan.collectives = collectives_of(*processes, number(config.gradient_accumulation_steps));
  memory.buffers = step.others + step.most_noise + step.under_way;
  optimizer.zero_grad();
  unshard_experts(model);
  nn::set_batch_shard(model, {});
  return step;
}

double collective_seconds(const Collective& collective, const ClusterModel& cluster) {
  const Gpu& gpu = cluster.gpu;
  const Traffic traffic = collective.traffic;
  const int64_t fit = std::max<int64_t>(1, cluster.gpus_per_node / collective.stride);
  const auto all = number(collective.group), in_node = std::min(number(fit), all);
  const double nodes = std::ceil(all / in_node);
  // There are as many rings as GPUs of a node, each of which leaves the node by another port.
  double rate = std::min(gpu.node_rate, in_node * gpu.network_rate);
  // A sum goes up and down a tree.
  double hops = 2.0 * (std::ceil(std::log2(in_node)) * cluster.node_latency +
                       std::ceil(std::log2(nodes)) * cluster.network_latency);
  if (traffic == Traffic::rows) {  // From all to all.
    const double leaves = (all - in_node) / (all - 1.0);
    hops = nodes > 1.0 ? cluster.network_latency : cluster.node_latency;
    rate = 1.0 / std::max((1.0 - leaves) / gpu.node_rate, leaves / gpu.network_rate);
  } else if (traffic == Traffic::logits || traffic == Traffic::row_counts ||
             traffic == Traffic::parameters) {  // Gathered in a ring.
    hops = (all - nodes) * cluster.node_latency + (nodes - 1.0) * cluster.network_latency;
  }
  if (nodes == 1.0) rate = gpu.node_rate;
  // Broadcasts are started one after the other, and then under way side by side.
  const double starts = traffic == Traffic::parameters ? all : 1.0;
  return collective.calls * (starts * cluster.call_latency + hops) +
         collective.bytes / (cluster.link_fraction * rate);
}

std::string milliseconds_text(double seconds) {
  return fmt::format("{:.4g} ms", 1e3 * seconds);
}

std::string one_plan(const ScalingPlan& plan, const PhasePlan& phase, const Gpu& gpu) {
  const TrainingMemory& memory = plan.memory;
  std::string text = fmt::format(
      "images        {} of a batch of {} to each process\nmemory        of each: {}{} of the GPU's "
      "{}{}: parameters {}, gradients {}, optimizer {}, activations {}, buffers {}\n",
      plan.num_images, phase.batch_size, memory.activations ? "" : "more than ",
      bytes_text(memory.sum()), bytes_text(gpu.memory),
      memory.sum() > gpu.memory ? ", which is too much" : "", bytes_text(memory.weights),
      bytes_text(memory.gradients), bytes_text(memory.optimizer),
      memory.activations ? bytes_text(*memory.activations) : "not known",
      bytes_text(memory.buffers));
  constexpr const char* kRow = "{:<20} {:>9} {:>7} {:>16} {:>12}\n";
  if (!plan.collectives.empty()) {
    text += fmt::format(kRow, "collective", "processes", "calls", "sent by each", "time");
  }
  for (const Collective& sent : plan.collectives) {
    text += fmt::format(kRow, "  " + sent.name, sent.group, sent.calls, bytes_text(sent.bytes),
                        milliseconds_text(sent.seconds));
  }
  text += fmt::format(
      "step          {} expected: matmul {}, routing {}, update {}, exposed communication {}\n"
      "efficiency    {:.3f}, {:.0f} images/s, {:.1f} % of the peak\n",
      milliseconds_text(plan.step()), milliseconds_text(plan.products),
      milliseconds_text(plan.routing), milliseconds_text(plan.update),
      milliseconds_text(plan.waiting), plan.efficiency, plan.images_per_second,
      100.0 * plan.peak_fraction);
  return text;
}

constexpr const char* kPlanRow =
    "{:>9} {:>7} {:>10} {:>10} {:>12} {:>12} {:>12} {:>10} {:>10} {:>7}\n";

constexpr const char* kPlanLegend =
    "\nimages, memory (!: more than the GPU has) and sent (bytes): of each process, in a step;\n"
    "step, routing, waiting: expected time of a step, of its routing and of communication that it\n"
    "waits for; efficiency: time without communication / time with it; peak: of the GPU's FLOP/s\n";

std::string table_row(const ScalingPlan& plan, int64_t processes, const Gpu& gpu) {
  return fmt::format(kPlanRow, processes, plan.num_images,
                     bytes_text(plan.memory.sum()) + (plan.memory.sum() > gpu.memory ? "!" : ""),
                     bytes_text(plan.bytes_sent), milliseconds_text(plan.step()),
                     milliseconds_text(plan.routing), milliseconds_text(plan.waiting),
                     fmt::format("{:.3f}", plan.efficiency),
                     fmt::format("{:.0f}", plan.images_per_second),
                     fmt::format("{:.1f} %", 100.0 * plan.peak_fraction));
}

}  // namespace

ScalingPlan plan_scaling(Model& model, const PhasePlan& phase, int64_t processes,
                         const ParallelConfig& parallel, const ClusterModel& cluster) {
  CountedStep step = count_step(model, phase, processes, parallel);
  ScalingPlan& plan = step.plan;
  const Gpu& gpu = cluster.gpu;
  const int64_t parts = settings_of<GradientConfig>(phase.config).gradient_accumulation_steps;
  const double micro_batches = number(parts);
  const double memory_rate = gpu.memory_rate * cluster.memory_fraction;
  plan.memory.activations = activation_memory(model, phase, plan.num_images / parts);
  const bool half = phase.precision == "bfloat16";
  const double peak = half ? gpu.bfloat16 : cluster.tf32 ? gpu.tf32 : gpu.float32;
  const double rate =
      peak * (half || cluster.tf32 ? cluster.tensor_fraction : cluster.float32_fraction);
  const double forwards = phase.activation_checkpointing ? 2.0 : 1.0;
  const double passes = forwards + 2.0;  // Backward costs two forward passes.
  const double flops = number(plan.num_images) * model.flops_per_image(even_rows_per_token(model));
  // Every pass of every part reads the weights, which is what few images wait for.
  plan.products =
      std::max(passes * flops / rate, passes * micro_batches * plan.memory.weights / memory_rate);
  const double routings = cluster.routing_forward * forwards + cluster.routing_backward;
  const double local_routing = micro_batches * routings * 4.0 * step.member_logits / memory_rate;
  plan.routing =
      micro_batches * 4.0 * (routings * step.logits + forwards * step.noise) / memory_rate;
  // Parameters, gradients and state are read, the first and the last written, and the gradients
  // read once more for their norm.
  plan.update = 2.0 * (step.updated + plan.memory.gradients + plan.memory.optimizer) / memory_rate;
  double gradients = 0.0;
  for (Collective& collective : plan.collectives) {
    collective.seconds = collective_seconds(collective, cluster);
    plan.bytes_sent += collective.bytes;
    (collective.name.ends_with("gradients") ? gradients : plan.waiting) += collective.seconds;
  }
  const double backward = plan.products / micro_batches * (passes - 1.0) / passes;
  plan.waiting += std::max(0.0, gradients - backward);
  plan.efficiency = (plan.products + plan.update + local_routing) / plan.step();
  plan.images_per_second = number(phase.batch_size) / plan.step();
  plan.peak_fraction = 3.0 * flops / (plan.step() * peak);
  return plan;
}

std::string describe_scaling(Model& model, const RunConfig& config,
                             const std::vector<PhasePlan>& phases,
                             const std::vector<int64_t>& process_counts, const std::string& gpu) {
  const ClusterModel cluster{.gpu = gpus().at(gpu), .tf32 = config.tf32};
  const bool one = process_counts.size() == 1;
  const int64_t num_sharing = config.parallel.expert_parallel_size;
  std::string text;
  for (const PhasePlan& phase : phases) {
    if (phase.steps == 0) continue;
    const NamedSettings& kind = phase.config.kind;
    text += fmt::format("\nprocesses     {}: ", phase.config.name);
    if (kind.find<GradientConfig>() == nullptr) {
      text += fmt::format("a phase of kind '{}' is not divided among them\n", kind.name());
      continue;
    }
    text +=
        fmt::format("{}{} GPUs, {} a node; {}{}\n",
                    one ? fmt::format("{} on ", process_counts[0]) : "", gpu, cluster.gpus_per_node,
                    num_sharing > 1 ? fmt::format("groups of {} share the experts", num_sharing)
                                    : "every process has all experts",
                    config.parallel.shard_optimizer ? ", optimizer state is sharded" : "");
    if (!one) {
      text += fmt::format(kPlanRow, "processes", "images", "memory", "sent", "step", "routing",
                          "waiting", "efficiency", "images/s", "peak");
    }
    for (const int64_t processes : process_counts) {
      const ScalingPlan plan = plan_scaling(model, phase, processes, config.parallel, cluster);
      text += one ? one_plan(plan, phase, cluster.gpu) : table_row(plan, processes, cluster.gpu);
    }
  }
  if (!one) text += kPlanLegend;
  return text +
         "\nprocesses     an estimate, not a measurement (docs/scaling.md); left out: data "
         "loading, checkpoints, evaluation, memory of LibTorch and the communication library\n";
}

}  // namespace moesaic
