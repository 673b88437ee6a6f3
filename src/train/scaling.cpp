// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/scaling.h"

#include <algorithm>
#include <cmath>

#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/memory.h"
#include "scaling_bytes.h"

namespace moesaic {
namespace {

/// Where the processes of a collective sit.
struct Seats {
  double in_node = 1.0, nodes = 1.0, all = 1.0;

  Seats(const Collective& collective, const ClusterModel& cluster)
      : all(static_cast<double>(collective.group)) {
    const int64_t fit = std::max<int64_t>(1, cluster.node / collective.stride);
    in_node = static_cast<double>(std::min(fit, collective.group));
    nodes = std::ceil(all / in_node);
  }
};

/// Returns the seconds of the hops of one call.
double hop_seconds(const Collective& collective, const Seats& seats, const ClusterModel& cluster) {
  switch (collective.kind) {
    case CollectiveKind::all_reduce:  // A tree, up and down.
      return 2.0 * (std::ceil(std::log2(seats.in_node)) * cluster.node_latency +
                    std::ceil(std::log2(seats.nodes)) * cluster.network_latency);
    case CollectiveKind::all_gather:  // A ring.
      return (seats.all - seats.nodes) * cluster.node_latency +
             (seats.nodes - 1.0) * cluster.network_latency;
    case CollectiveKind::all_to_all:
      return seats.nodes > 1.0 ? cluster.network_latency : cluster.node_latency;
  }
  return 0.0;
}

/// Returns the seconds that the bytes of all calls are under way.
double transfer_seconds(const Collective& collective, const Seats& seats,
                        const ClusterModel& cluster) {
  const Gpu& gpu = cluster.gpu;
  const double bytes = collective.bytes / cluster.link_fraction;
  if (seats.nodes == 1.0) return bytes / gpu.node_rate;
  if (collective.kind == CollectiveKind::all_to_all) {
    const double leaves = (seats.all - seats.in_node) / (seats.all - 1.0);
    return bytes * std::max((1.0 - leaves) / gpu.node_rate, leaves / gpu.network_rate);
  }
  // There are as many rings as GPUs of a node, each of which leaves the node by another port.
  return bytes / std::min(gpu.node_rate, seats.in_node * gpu.network_rate);
}

double collective_seconds(const Collective& collective, const ClusterModel& cluster) {
  const Seats seats(collective, cluster);
  return collective.calls * (cluster.call_latency + hop_seconds(collective, seats, cluster)) +
         transfer_seconds(collective, seats, cluster);
}

double product_rate(const PhasePlan& phase, const ClusterModel& cluster) {
  if (phase.precision == "bfloat16") return cluster.gpu.bfloat16 * cluster.tensor_fraction;
  if (cluster.tf32) return cluster.gpu.tf32 * cluster.tensor_fraction;
  return cluster.gpu.float32 * cluster.float32_fraction;
}

double peak_rate(const PhasePlan& phase, const ClusterModel& cluster) {
  if (phase.precision == "bfloat16") return cluster.gpu.bfloat16;
  return cluster.tf32 ? cluster.gpu.tf32 : cluster.gpu.float32;
}

bool overlaps_backward(const Collective& collective) {
  return collective.name == "gradients" || collective.name == "expert_gradients";
}

ProcessMemory memory_of_process(Model& model, const PhasePlan& phase, const ProcessMesh& mesh,
                                double optimizer) {
  ProcessMemory memory;
  memory.parameters =
      parameter_bytes(model, [](const std::string&) { return true; }).of_process(mesh);
  memory.gradients = gradient_bytes(model, phase.config).of_process(mesh);
  memory.optimizer = optimizer;
  const int64_t images = phase.batch / parts_of_batch(phase), local = images / mesh.processes;
  memory.activations = activation_memory(model, phase, local);
  double routing = 0.0, noise = 0.0, rows = 0.0;
  for (const RoutedLayer& layer : routed_layers(model, phase, mesh)) {
    const auto of_others = static_cast<double>(images - local);
    if (layer.alone) {
      noise = std::max(noise, layer.noisy ? of_others * 4.0 * layer.logits : 0.0);
    } else {  // Logits, what the gates are computed from, and token, row and gate of each row.
      const double bytes = of_others * (2.0 * 4.0 * layer.logits + 12.0 * layer.rows);
      routing = phase.recompute ? std::max(routing, bytes) : routing + bytes;
    }
    rows = std::max(rows, layer.there + layer.back);
  }
  const double under_way = static_cast<double>(local) * rows * row_number_bytes(phase);
  memory.buffers = routing + noise + (mesh.experts > 1 ? under_way : 0.0);
  return memory;
}

/// Returns the seconds in which a process routes what it routes of a step's tokens, or `own_tokens`
/// alone.
double routing_seconds(Model& model, const PhasePlan& phase, const ProcessMesh& mesh,
                       const ClusterModel& cluster, bool own_tokens) {
  const double forwards = phase.recompute ? 2.0 : 1.0;
  const double passes = cluster.routing_forward * forwards + cluster.routing_backward;
  const auto all = static_cast<double>(phase.batch);
  const double own = all / static_cast<double>(mesh.processes);
  double bytes = 0.0;
  for (const RoutedLayer& layer : routed_layers(model, phase, mesh)) {
    const bool alone = own_tokens || layer.alone;
    bytes += (alone ? own : all) * passes * 4.0 * layer.logits;
    // The noise of others' tokens is drawn, too, so that one's own is that of one process.
    if (!own_tokens && layer.alone && layer.noisy) {
      bytes += (all - own) * forwards * 4.0 * layer.logits;
    }
  }
  return bytes / (cluster.gpu.memory_rate * cluster.memory_fraction);
}

}  // namespace

double ScalingPlan::bytes_sent() const {
  double sum = 0.0;
  for (const Collective& collective : collectives) sum += collective.bytes;
  return sum;
}

ScalingPlan plan_scaling(Model& model, const PhasePlan& phase, const ProcessMesh& mesh,
                         const ClusterModel& cluster) {
  ScalingPlan plan;
  plan.collectives = step_collectives(model, phase, mesh);
  plan.images = phase.batch / mesh.processes;
  const UpdateBytes update = update_bytes(model, phase.config, mesh);
  plan.memory = memory_of_process(model, phase, mesh, update.state);
  const double memory_rate = cluster.gpu.memory_rate * cluster.memory_fraction;
  const double passes = phase.recompute ? 4.0 : 3.0;  // Backward costs two forward passes.
  const double flops =
      static_cast<double>(plan.images) * model.flops_per_image(even_rows_per_token(model));
  // Every pass of every part reads the weights, which is what few images wait for.
  const auto parts = static_cast<double>(parts_of_batch(phase));
  plan.products = std::max(passes * flops / product_rate(phase, cluster),
                           passes * parts * plan.memory.parameters / memory_rate);
  plan.routing = routing_seconds(model, phase, mesh, cluster, /*own_tokens=*/false);
  // Parameters, gradients and state are read, the first and the last written, and the gradients
  // read once more for their norm.
  plan.update =
      2.0 * (update.updated + plan.memory.gradients + plan.memory.optimizer) / memory_rate;
  double gradients = 0.0;
  for (Collective& collective : plan.collectives) {
    collective.seconds = collective_seconds(collective, cluster);
    (overlaps_backward(collective) ? gradients : plan.waiting) += collective.seconds;
  }
  const double backward = plan.products / parts * (passes - 1.0) / passes;
  plan.waiting += std::max(0.0, gradients - backward);
  const double alone = plan.products + plan.update +
                       routing_seconds(model, phase, mesh, cluster, /*own_tokens=*/true);
  plan.efficiency = alone / plan.step();
  plan.images_per_second = static_cast<double>(phase.batch) / plan.step();
  plan.peak_fraction = 3.0 * flops / (plan.step() * peak_rate(phase, cluster));
  return plan;
}

}  // namespace moesaic
