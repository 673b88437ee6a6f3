// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "moesaic/base/text.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/scaling.h"

namespace moesaic {
namespace {

std::string milliseconds_text(double seconds) {
  return fmt::format("{:.4g} ms", 1e3 * seconds);
}

std::string per_process_memory(const ProcessMemory& memory, const Gpu& gpu) {
  return fmt::format("{}{} of the GPU's {}{}", memory.activations ? "" : "more than ",
                     bytes_text(memory.sum()), bytes_text(gpu.memory),
                     memory.sum() > gpu.memory ? ", which is too much" : "");
}

std::string one_plan(const ScalingPlan& plan, const PhasePlan& phase, const ProcessMesh& mesh,
                     const ClusterModel& cluster) {
  const ProcessMemory& memory = plan.memory;
  std::string text = fmt::format(
      "images        {} of a batch of {} to each process\nmemory        of each: {}: parameters "
      "{}, gradients {}, optimizer {}, activations {}, buffers {}\n",
      plan.images, phase.batch, per_process_memory(memory, cluster.gpu),
      bytes_text(memory.parameters), bytes_text(memory.gradients), bytes_text(memory.optimizer),
      memory.activations ? bytes_text(*memory.activations) : "not known",
      bytes_text(memory.buffers));
  if (mesh.processes > 1) {
    text += fmt::format("{:<20} {:>9} {:>7} {:>16} {:>12}\n", "collective", "processes", "calls",
                        "sent by each", "time");
  }
  for (const Collective& collective : plan.collectives) {
    text += fmt::format("  {:<18} {:>9} {:>7.0f} {:>16} {:>12}\n", collective.name,
                        collective.group, collective.calls, bytes_text(collective.bytes),
                        milliseconds_text(collective.seconds));
  }
  return text + fmt::format(
                    "step          {} expected: products {}, routing {}, update {}, waiting for "
                    "others {}\nefficiency    {:.3f}, {:.0f} images/s, {:.1f} % of the peak\n",
                    milliseconds_text(plan.step()), milliseconds_text(plan.products),
                    milliseconds_text(plan.routing), milliseconds_text(plan.update),
                    milliseconds_text(plan.waiting), plan.efficiency, plan.images_per_second,
                    100.0 * plan.peak_fraction);
}

std::string table_header() {
  return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>12} {:>12} {:>12} {:>10} {:>10} {:>7}\n",
                     "processes", "images", "memory", "sent", "step", "routing", "waiting",
                     "efficiency", "images/s", "peak");
}

std::string table_row(const ScalingPlan& plan, const ProcessMesh& mesh, const Gpu& gpu) {
  const std::string memory =
      bytes_text(plan.memory.sum()) + (plan.memory.sum() > gpu.memory ? "!" : "");
  return fmt::format(
      "{:>9} {:>7} {:>10} {:>10} {:>12} {:>12} {:>12} {:>10.3f} {:>10.0f} {:>5.1f} %\n",
      mesh.processes, plan.images, memory, bytes_text(plan.bytes_sent()),
      milliseconds_text(plan.step()), milliseconds_text(plan.routing),
      milliseconds_text(plan.waiting), plan.efficiency, plan.images_per_second,
      100.0 * plan.peak_fraction);
}

std::string sharing_text(const ScalingOptions& options) {
  std::string text = options.expert_parallel > 1
                         ? fmt::format("groups of {} share the experts", options.expert_parallel)
                         : "every process has all experts";
  return text + (options.shard_optimizer ? ", optimizer state is sharded" : "");
}

}  // namespace

std::string describe_scaling(Model& model, const RunConfig& config,
                             const std::vector<PhasePlan>& phases, const ScalingOptions& options) {
  ClusterModel cluster;
  cluster.gpu = gpus().at(options.gpu);
  cluster.tf32 = config.tf32;
  std::string text;
  for (const PhasePlan& phase : phases) {
    if (phase.steps == 0) continue;
    if (phase.config.kind.find<GradientConfig>() == nullptr) {
      text += fmt::format("\nprocesses     {}: a phase of kind '{}' is not parted among them\n",
                          phase.config.name, phase.config.kind.name());
      continue;
    }
    const bool one = options.processes.size() == 1;
    text += fmt::format("\nprocesses     {}: {}{} GPUs, {} a node; {}\n", phase.config.name,
                        one ? fmt::format("{} on ", options.processes[0]) : "", options.gpu,
                        cluster.node, sharing_text(options));
    if (!one) text += table_header();
    for (const int64_t processes : options.processes) {
      const ProcessMesh mesh{processes, options.expert_parallel, options.shard_optimizer};
      const ScalingPlan plan = plan_scaling(model, phase, mesh, cluster);
      text += one ? one_plan(plan, phase, mesh, cluster) : table_row(plan, mesh, cluster.gpu);
    }
  }
  return text +
         "\nprocesses     a model on paper (docs/scaling.md); left out: data loading, checkpoints, "
         "evaluation, memory of LibTorch and the communication library\n";
}

}  // namespace moesaic
