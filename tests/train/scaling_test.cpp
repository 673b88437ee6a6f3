// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "moesaic/models/registry.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/gradient_phase.h"
#include "support/matchers.h"
#include "support/processes.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

/// So many processes, of which some share the experts, and perhaps the optimizer's state.
struct PaperMesh {
  int64_t processes = 1, experts = 1;
  bool shard_optimizer = false;

  ParallelConfig parallel() const {
    return {.expert_parallel_size = experts, .shard_optimizer = shard_optimizer};
  }
};

/// The first phase of the tiny run: images of 5 tokens of width 8, in one of two blocks 4 experts
/// with 8 hidden units, of which a token selects two; 4 images a batch.
struct PaperRun {
  RunConfig config;
  std::shared_ptr<Model> model;
  std::vector<PhasePlan> phases;

  explicit PaperRun(const std::vector<std::string>& changes = {})
      : config(config_of(four_phases(), changes)) {
    model = build_initial_meta_model(config);
    DatasetCache datasets(train_test::open_tiny);
    phases = plan_phases(config, *model, datasets);
  }

  std::vector<Collective> collectives(const PaperMesh& mesh) const {
    return plan(mesh).collectives;
  }
  /// Returns that of a name, or one of no bytes.
  Collective collective(const std::string& name, const PaperMesh& mesh) const {
    for (const Collective& found : collectives(mesh)) {
      if (found.name == name) return found;
    }
    return {};
  }
  double sent(const std::string& name, const PaperMesh& mesh) const {
    return collective(name, mesh).bytes;
  }
  double calls(const std::string& name, const PaperMesh& mesh) const {
    return collective(name, mesh).calls;
  }
  ScalingPlan plan(const PaperMesh& mesh, const ClusterModel& cluster = {}) const {
    return plan_scaling(*model, phases[0], mesh.processes, mesh.parallel(), cluster);
  }
  double dense_bytes() const {
    return 4.0 * static_cast<double>(model->num_parameters()) - kExpertBytes;
  }
  std::string refusal(const PaperMesh& mesh) const {
    return error_of([&] { plan(mesh); });
  }

  static constexpr double kExpertBytes = 4.0 * 4 * (8 * 8 + 8 + 8 * 8 + 8);
};

TEST(ScalingBytes, AreThoseCountedByHand) {
  const PaperRun run;
  const PaperMesh mesh{.processes = 4, .experts = 2};
  EXPECT_EQ(run.sent("gradients", mesh), 2 * 3.0 / 4 * run.dense_bytes());
  EXPECT_EQ(run.sent("expert_gradients", mesh), 2 * 1.0 / 2 * PaperRun::kExpertBytes / 2);
  const double logits = 4 * 5 * 4 * 4;  // of all images, tokens and experts, in float32
  EXPECT_EQ(run.sent("logits", mesh), 3.0 / 4 * logits);
  EXPECT_EQ(run.sent("logits_gradient", mesh), 2 * 3.0 / 4 * logits);
  // One image's tokens twice, there and back, forward and backward; half of them stay.
  EXPECT_EQ(run.sent("rows", mesh), 5 * 2 * (8 + 8) * 4 * 2 / 2);
  EXPECT_EQ(run.sent("metrics", mesh), 2 * 3.0 / 4 * 80);
  EXPECT_EQ(run.collectives(mesh).size(), 6U);
  const PaperMesh sharded{.processes = 4, .experts = 2, .shard_optimizer = true};
  EXPECT_EQ(run.sent("parameters", sharded), 3.0 / 4 * run.dense_bytes());
  for (const Collective& collective : run.collectives(sharded)) {
    const bool replicas = collective.name == "expert_gradients", rows = collective.name == "rows";
    EXPECT_EQ(collective.group, replicas || rows ? 2 : 4) << collective.name;
    EXPECT_EQ(collective.stride, replicas ? 2 : 1) << collective.name;
  }
}

// A group of tokens is an image's, of which every process has one.
TEST(ScalingBytes, GroupsWithinProcessesSendCountsForLogits) {
  const char* const groups = "model.encoder.moe.num_group_images=1";
  const PaperRun run, alone({groups}), again({groups, "activation_checkpointing=true"}),
      larger({"model.encoder.moe.num_group_images=2"});
  const PaperMesh mesh{.processes = 4, .experts = 2};
  EXPECT_EQ(alone.sent("logits", mesh) + alone.sent("logits_gradient", mesh), 0.0);
  EXPECT_EQ(alone.sent("row_counts", mesh), 4 * 8);  // Of four experts to one other.
  EXPECT_EQ(again.sent("row_counts", mesh), 2 * 4 * 8);
  EXPECT_EQ(alone.sent("rows", mesh), run.sent("rows", mesh));
  EXPECT_EQ(alone.collectives({.processes = 4}).size(),
            run.collectives({.processes = 4}).size() - 2);
  EXPECT_EQ(larger.sent("logits", mesh), run.sent("logits", mesh)) << "half a group in each";
  EXPECT_EQ(larger.sent("logits", {.processes = 2}), 0.0);
  EXPECT_EQ(alone.collective("row_counts", mesh).group, 2);
}

TEST(ScalingPlan, ProcessesRouteTheirOwnGroups) {
  const std::string groups = "model.encoder.moe.num_group_images=1",
                    quiet = "model.encoder.moe.router.noise_std=0";
  const std::string losses = "phases.0.aux_losses={}";  // One of them needs noise.
  const PaperRun together({quiet, losses}), alone({groups, quiet, losses}), noisy({groups});
  const double of_all = together.plan({.processes = 4}).routing;
  EXPECT_DOUBLE_EQ(of_all, together.plan({}).routing);
  EXPECT_DOUBLE_EQ(alone.plan({.processes = 4}).routing, of_all / 4);
  // Noise of the three others is written, beside 24 passes over one's own logits.
  EXPECT_DOUBLE_EQ(noisy.plan({.processes = 4}).routing, of_all / 4 * (1 + 3 * 1.0 / 24));
  EXPECT_LT(alone.plan({.processes = 4}).memory.buffers,
            noisy.plan({.processes = 4}).memory.buffers);
  EXPECT_LT(noisy.plan({.processes = 4}).memory.buffers,
            together.plan({.processes = 4}).memory.buffers);
}

TEST(ScalingBytes, EveryProcessWithAllExpertsSendsNoRows) {
  const PaperRun run;
  const PaperMesh mesh{.processes = 2};
  EXPECT_EQ(run.sent("rows", mesh), 0.0);
  EXPECT_EQ(run.sent("expert_gradients", mesh), PaperRun::kExpertBytes);
  EXPECT_EQ(run.sent("gradients", mesh), run.dense_bytes());
  const PaperMesh sharded{.processes = 2, .shard_optimizer = true};
  EXPECT_EQ(run.sent("parameters", sharded), (run.dense_bytes() + PaperRun::kExpertBytes) / 2);
  EXPECT_TRUE(run.collectives({}).empty());
  const PaperMesh one_replica{.processes = 2, .experts = 2};
  EXPECT_EQ(run.sent("expert_gradients", one_replica), 0.0);
  EXPECT_GT(run.sent("rows", one_replica), 0.0);
}

TEST(ScalingBytes, FollowRecomputePrecisionAndParts) {
  const PaperMesh mesh{.processes = 2, .experts = 2};
  const PaperRun run, again({"activation_checkpointing=true"}), half({"precision=bfloat16"}),
      parts({"phases.0.gradient_accumulation_steps=2"});
  EXPECT_EQ(again.sent("rows", mesh), 1.5 * run.sent("rows", mesh));
  EXPECT_EQ(again.sent("logits", mesh), 2 * run.sent("logits", mesh));
  EXPECT_EQ(again.sent("logits_gradient", mesh), run.sent("logits_gradient", mesh));
  EXPECT_EQ(half.sent("rows", mesh), run.sent("rows", mesh) / 2);
  EXPECT_EQ(half.sent("logits", mesh), run.sent("logits", mesh));
  for (const char* name : {"gradients", "logits", "logits_gradient", "rows", "metrics"}) {
    EXPECT_EQ(parts.sent(name, mesh), run.sent(name, mesh)) << name;
  }
  EXPECT_EQ(run.calls("rows", mesh), 4);
  EXPECT_EQ(parts.calls("rows", mesh), 8);
  EXPECT_EQ(parts.calls("gradients", mesh), run.calls("gradients", mesh));
}

TEST(ScalingBytes, FrozenParametersAreReducedAndNotSent) {
  const PaperMesh mesh{.processes = 2, .shard_optimizer = true};
  const PaperRun run, frozen({"phases.0.frozen=[\"head\"]"}),
      routers({"phases.0.trainable=[\"router\"]"});
  const double head = 4.0 * 3 * (8 + 1), router = 4.0 * 4 * 8;
  EXPECT_EQ(frozen.sent("gradients", mesh), run.sent("gradients", mesh));
  EXPECT_EQ(frozen.sent("parameters", mesh), run.sent("parameters", mesh) - head / 2);
  EXPECT_EQ(routers.sent("gradients", mesh), router);
  EXPECT_EQ(routers.sent("expert_gradients", mesh), 0.0);
}

TEST(ScalingBytes, LeaveTheNetworkAsItWas) {
  const PaperRun run;
  const std::string before = run.model->config().dump();
  const int64_t parameters = run.model->num_parameters();
  const std::optional<double> activations = activation_memory(*run.model, run.phases[0], 1);
  run.collectives({.processes = 4, .experts = 2, .shard_optimizer = true});
  EXPECT_EQ(run.model->config().dump(), before);
  EXPECT_EQ(run.model->num_parameters(), parameters);
  EXPECT_EQ(activation_memory(*run.model, run.phases[0], 1), activations);
  for (const MoEBlock& block : run.model->moe_blocks()) {
    EXPECT_EQ(block.layer->experts->mesh(), nullptr);
    EXPECT_EQ(block.layer->router->batch_shard().processes, nullptr);
  }
}

// Experts that take images rather than what the router sees, and have batch norms.
TEST(ScalingBytes, OfExpertsThatAreNetworks) {
  const RunConfig config = config_of(R"({"name": "a", "model": {"name": "image-moe",
      "expert": "resnet18", "num_experts": 2, "num_classes": 3, "width": 0.05, "router": {}},
      "phases": [{"name": "train", "data": "three", "batch_size": 4, "steps": 1}]})");
  const auto model = build_initial_meta_model(config);
  const PhasePlan phase{.config = config.phases[0], .batch_size = 4, .steps = 1};
  double channels = 0.0, norms = 0.0;
  for (const auto& item : model->named_buffers()) {
    if (!item.key().ends_with("running_mean")) continue;
    channels += static_cast<double>(item.value().numel());
    norms += 1.0;
  }
  ASSERT_GT(channels, 0.0);
  const auto sent = [&](const PaperMesh& mesh) {
    std::map<std::string, double> bytes;
    const ScalingPlan plan = plan_scaling(*model, phase, mesh.processes, mesh.parallel());
    for (const Collective& c : plan.collectives) bytes[c.name] = c.bytes;
    return bytes;
  };
  // Two numbers of a channel and the number of values, forward and backward, half of them sent on
  // twice; and how many rows each of two experts has, in 64 bits.
  EXPECT_EQ(sent({.processes = 2}).at("expert_batch_norm"), 2 * 4 * (2 * channels + norms) + 2 * 8);
  EXPECT_FALSE(sent({.processes = 2}).contains("batch_norm"));
  const std::vector<int64_t> shape = model->input_shape();
  const auto pixels = static_cast<double>(shape[0] * shape[1] * shape[2]);
  const auto outputs = static_cast<double>(model->moe_blocks()[0].layer->experts->num_outputs());
  const double rows =
      2 * model->moe_blocks()[0].layer->options().num_members;  // images of a process
  // Outputs and their gradients, and images, which have none; half of them stay.
  EXPECT_EQ(sent({.processes = 2, .experts = 2}).at("rows"), rows * (pixels + 2 * outputs) * 4 / 2);
}

TEST(ScalingMemory, ExpertsAreDividedAmongThoseThatShareThem) {
  const PaperRun run;
  const auto memory = [&](int64_t experts) {
    return run.plan({.processes = 4, .experts = experts}).memory;
  };
  const double dense = run.dense_bytes(), all = PaperRun::kExpertBytes;
  for (const int64_t experts : {1, 2, 4}) {
    const TrainingMemory found = memory(experts);
    const double expected = dense + all / static_cast<double>(experts);
    EXPECT_EQ(found.weights, expected);
    EXPECT_EQ(found.gradients, expected);
    EXPECT_EQ(found.optimizer, 2 * expected);
    EXPECT_EQ(found.activations, activation_memory(*run.model, run.phases[0], 1));
  }
  EXPECT_GT(memory(2).buffers, memory(1).buffers);
  EXPECT_EQ(run.plan({}).memory.buffers, 0.0);
}

TEST(ScalingMemory, OfASharedOptimizerIsThatOfTheProcessWithMost) {
  for (const int64_t experts : {1, 2}) {
    std::atomic<int64_t> most = 0, all = 0;
    test::run_processes(4, {.expert_parallel_size = experts}, [&](const auto& processes) {
      const PaperRun run;
      const auto& config = settings_of<GradientConfig>(run.phases[0].config);
      Optimizer::NamedParameters parameters;
      for (const auto& item : run.model->named_parameters()) {
        parameters.emplace_back(item.key(), item.value());
      }
      Optimizer optimizer(parameters, config.optimizer);
      optimizer.shard_state(processes, [&](const std::string& name) {
        return experts > 1 && name.find("experts") != std::string::npos;
      });
      int64_t own = 0;
      for (const auto& [name, slot] : optimizer.state()) {
        const bool of_experts = experts > 1 && name.find("experts") != std::string::npos;
        own += static_cast<int64_t>(slot.nbytes()) / (of_experts ? experts : 1);
      }
      all += own;
      const int64_t largest = processes->all_reduce_max(own);
      if (processes->is_rank_zero()) most = largest;
    });
    const PaperRun run;
    const double planned =
        run.plan({.processes = 4, .experts = experts, .shard_optimizer = true}).memory.optimizer;
    EXPECT_EQ(planned, static_cast<double>(most)) << experts;
    EXPECT_GT(4 * most, all) << "tensors of these sizes cannot be divided evenly";
  }
}

TEST(ScalingMemory, ActivationsAreThoseOfFewImagesBesideGradientsThatStay) {
  const PaperRun run({"phases.0.batch_size=18"});
  const auto of = [&](int64_t images) {
    return activation_memory(*run.model, run.phases[0], images).value();
  };
  EXPECT_GT(of(18), 4 * of(3));
  EXPECT_GT(of(1), 4.0 * 5 * 8 * 4);
}

TEST(ScalingPlan, OneProcessWaitsForNobody) {
  const PaperRun run;
  const ScalingPlan plan = run.plan({});
  EXPECT_EQ(plan.waiting, 0.0);
  EXPECT_EQ(plan.efficiency, 1.0);
  EXPECT_EQ(plan.bytes_sent, 0.0);
  EXPECT_EQ(plan.num_images, 4);
  EXPECT_DOUBLE_EQ(plan.images_per_second, 4 / plan.step());
}

TEST(ScalingPlan, EfficiencyFallsWithLatencyAndRisesWithLinks) {
  const PaperRun run;
  const PaperMesh mesh{.processes = 4, .experts = 2};
  const auto efficiency = [&](const std::function<void(ClusterModel&)>& change) {
    ClusterModel cluster;
    change(cluster);
    return run.plan(mesh, cluster).efficiency;
  };
  const double now = efficiency([](ClusterModel&) {});
  EXPECT_GT(now, 0.0);
  EXPECT_LT(now, 1.0);
  EXPECT_LT(efficiency([](ClusterModel& c) { c.call_latency *= 2; }), now);
  EXPECT_LT(efficiency([](ClusterModel& c) { c.node_latency *= 2; }), now);
  EXPECT_LT(efficiency([](ClusterModel& c) { c.gpu.node_rate /= 1000; }), now);
  EXPECT_LT(efficiency([](ClusterModel& c) { c.gpus_per_node = 2; }), now);
  EXPECT_EQ(efficiency([](ClusterModel& c) { c.network_latency *= 2; }), now);
  EXPECT_GT(efficiency([](ClusterModel& c) { c.call_latency = 0.0; }), now);
}

TEST(ScalingPlan, GradientsHideBehindTheBackwardPass) {
  const PaperRun run;
  ClusterModel cluster;
  cluster.tensor_fraction = cluster.float32_fraction = 1e-9;  // Backward takes seconds.
  double others = 0.0;
  const ScalingPlan plan = run.plan({.processes = 4}, cluster);
  for (const Collective& collective : plan.collectives) {
    EXPECT_GT(collective.seconds, 0.0) << collective.name;
    if (!collective.name.ends_with("gradients")) others += collective.seconds;
  }
  EXPECT_DOUBLE_EQ(plan.waiting, others);
}

TEST(ScalingPlan, TimeFollowsFormulas) {
  const PaperRun run;
  ClusterModel cluster;
  cluster.gpu = {.float32 = 1e6,
                 .tf32 = 4e6,
                 .bfloat16 = 8e6,
                 .memory = 1e9,
                 .memory_rate = 1e12,
                 .node_rate = 1e3,
                 .network_rate = 10.0};
  cluster.float32_fraction = 0.5;
  cluster.link_fraction = 1.0;
  cluster.call_latency = cluster.node_latency = cluster.network_latency = 0.0;
  const double flops = run.model->flops_per_image();
  const ScalingPlan plan = run.plan({.processes = 4}, cluster);
  EXPECT_DOUBLE_EQ(plan.products, 3 * flops / 0.5e6);
  EXPECT_DOUBLE_EQ(plan.peak_fraction, 3 * flops / plan.step() / 1e6);
  for (const Collective& c : plan.collectives) EXPECT_DOUBLE_EQ(c.seconds, c.bytes / 1e3);
  cluster.tf32 = true;
  EXPECT_DOUBLE_EQ(run.plan({.processes = 4}, cluster).products, 3 * flops / 4e6 / 0.45);
  cluster.gpus_per_node = 2;  // Both of a node send to the other one.
  for (const Collective& c : run.plan({.processes = 4}, cluster).collectives) {
    EXPECT_DOUBLE_EQ(c.seconds, c.bytes / 20) << c.name;
  }
  const PaperRun again({"activation_checkpointing=true"});
  EXPECT_DOUBLE_EQ(again.plan({.processes = 4}, cluster).products, 4 * flops / 4e6 / 0.45);
}

// With ZeRO-1 each process sends what it updated by a broadcast of its own.
TEST(ScalingPlan, ParametersAreABroadcastFromEachProcess) {
  const PaperRun run;
  ClusterModel cluster;
  cluster.call_latency = 1.0;
  cluster.node_latency = 0.0;
  cluster.gpu.node_rate = std::numeric_limits<double>::infinity();
  const PaperMesh mesh{.processes = 4, .shard_optimizer = true};
  EXPECT_EQ(run.calls("parameters", mesh), 1.0);
  const ScalingPlan plan = run.plan(mesh, cluster);
  for (const Collective& c : plan.collectives) {
    EXPECT_DOUBLE_EQ(c.seconds, c.name == "parameters" ? 4.0 : c.calls) << c.name;
  }
}

TEST(ScalingMesh, IsRefusedWithTheNearestChoice) {
  const PaperRun run;
  EXPECT_EQ(run.refusal({.processes = 4, .experts = 4}), "no error");
  EXPECT_EQ(run.refusal({.processes = 3}),
            "usage: phase 'pretrain': a batch of 4 images cannot be divided equally among 3 "
            "processes; choose a batch of 3 images, or 2 processes");
  EXPECT_EQ(run.refusal({.processes = 4, .experts = 3}),
            "usage: parallel.expert_parallel_size: 4 experts cannot be divided equally among 3 "
            "processes; choose 2");
  EXPECT_EQ(run.refusal({.processes = 2, .experts = 4}),
            "usage: parallel.expert_parallel_size: 2 processes cannot be divided into groups of 4 "
            "that share "
            "experts; choose 2");
  const PaperRun parts({"phases.0.gradient_accumulation_steps=4"});
  EXPECT_EQ(parts.refusal({.processes = 2}),
            "usage: phase 'pretrain': a batch of 4 images in 4 micro-batches cannot be divided "
            "equally among 2 processes; choose gradient_accumulation_steps=2");
  const PaperRun dense(
      {"model.encoder.moe.layers=[]", "phases.0.aux_losses={}", "phases.prune.on_entry={}"});
  EXPECT_THAT(dense.refusal({.processes = 2, .experts = 2}),
              HasSubstr("the network has no routed experts"));
  EXPECT_EQ(dense.refusal({.processes = 2}), "no error");
  EXPECT_EQ(dense.sent("logits", {.processes = 2}), 0.0);
}

TEST(ScalingText, IsAPlanOrATable) {
  const PaperRun run;
  const auto text = [&](const std::vector<int64_t>& processes, const std::string& gpu = "h100",
                        const std::vector<std::string>& changes = {}) {
    return describe_scaling(*run.model, config_of(four_phases(), changes), {run.phases[0]},
                            processes, gpu);
  };
  const std::string one = text({4}, "h200", {"parallel.expert_parallel_size=2"});
  EXPECT_THAT(one, AllOf(HasSubstr("pretrain: 4 on h200 GPUs, 8 a node; groups of 2 share"),
                         HasSubstr("of the GPU's 141 GB: parameters "), HasSubstr("  rows "),
                         HasSubstr("exposed communication"), HasSubstr("efficiency ")));
  const std::string table = text({1, 2, 4});
  EXPECT_THAT(table, AllOf(HasSubstr("\n        1       4 "), HasSubstr("\n        4       1 ")));
  EXPECT_THAT(error_of([&] { text({1}, "h10"); }),
              StartsWith("usage: unknown GPU 'h10'; did you mean 'h100'?"));
  EXPECT_THAT(error_of([&] { text({1, 3}); }), HasSubstr("or 2 processes"));
}

TEST(Gpus, AreCompleteAndSend) {
  for (const auto& [name, gpu] : gpus().entries()) {
    EXPECT_LT(gpu.float32, gpu.tf32) << name;
    EXPECT_LT(gpu.tf32, gpu.bfloat16) << name;
    EXPECT_GT(gpu.memory, 40e9) << name;
    EXPECT_GT(gpu.memory_rate, gpu.node_rate) << name;
    EXPECT_GE(gpu.node_rate, gpu.network_rate) << name;
  }
}

}  // namespace
}  // namespace moesaic
