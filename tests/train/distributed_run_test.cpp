// SPDX-License-Identifier: Apache-2.0
// Runs of several processes, which are threads here, make the steps of one.
#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "moesaic/models/registry.h"
#include "moesaic/train/run_plan.h"
#include "support/matchers.h"
#include "support/processes.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using test::run_processes;
using Changes = std::vector<std::string>;

TrainResult train_in_processes(const fs::path& out, int64_t size, const std::string& recipe,
                               const Changes& changes, bool resume = false) {
  TrainResult result;
  const RunConfig config = config_of(recipe, changes);
  run_processes(size, config.parallel, [&](const auto& processes) {
    TrainerOptions options = options_with_described(out, resume);
    if (size > 1) options.processes = processes;
    const TrainResult own = Trainer(config_of(recipe, changes), options).run();
    if (processes->is_rank_zero()) result = own;
  });
  return result;
}

/// Compares all numbers but those of speed.
void expect_same_numbers(const Json& one, const Json& other, double tolerance,
                         const std::string& where) {
  ASSERT_EQ(one.size(), other.size()) << where;
  for (const auto& [key, value] : one.items()) {
    const Json& found = other.is_array() ? other.at(std::stoul(key)) : other.at(key);
    const std::string place = where + "." + key;
    if (value.is_structured()) {
      expect_same_numbers(value, found, tolerance, place);
    } else if (value.is_number_float() || found.is_number_float()) {
      const double a = value.get<double>(), b = found.get<double>();
      // Norms and auxiliary losses are small differences of large sums.
      const bool is_loss = key == "loss" || key == "cross_entropy" || key == "mse";
      const double bound =
          is_loss ? tolerance * std::abs(a) : 100 * tolerance * (std::abs(a) + 1e-2);
      EXPECT_LE(std::abs(a - b), bound) << place << ": " << a << ", " << b;
    } else {
      EXPECT_EQ(value, found) << place;
    }
  }
}

void expect_same_run(const fs::path& one, const fs::path& other, double tolerance = 1e-5) {
  const std::vector<Json> a = metric_lines(one), b = metric_lines(other);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), 1u);
  for (size_t i = 0; i < a.size(); ++i) {
    expect_same_numbers(a[i], b[i], tolerance, "line " + std::to_string(i + 1));
  }
}

/// Fifty steps with everything that couples the images of a batch: priority with scarce capacity,
/// noise, auxiliary losses, mixup, accumulation and clipping.
std::string vmoe_recipe(const std::string& moe) {
  return R"({"name": "shared", "seed": 3, "log_every": 1, "checkpoint_every": 20,
    "evaluate_every": 0, "evaluate_batch_size": 4, "num_loader_threads": 1, "model": {"name": ")" +
         std::string(moe.find("ensemble") == std::string::npos ? "vmoe" : "e3") +
         R"(", "image_size": 4, "patch_size": 2, "hidden_size": 8, "num_classes": 3,
     "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 16, "moe": )" +
         moe + R"(}},
    "phases": [{"name": "train", "data": "three", "batch_size": 8, "gradient_accumulation_steps": 2, "steps": 50,
      "clip_norm": 0.5, "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9},
      "augment": {"flip": true, "max_shift": 1}, "evaluate": true}]})";
}

const char* const kMoE =
    R"({"layers": [0, 1], "num_experts": 4, "router": {"num_selected_experts": 2,
    "noise_std": 0.5, "importance_loss_weight": 0.01, "load_loss_weight": 0.02,
    "dispatcher": {"capacity_factor": 0.8, "batch_priority": true}}})";

struct Mesh {
  int64_t processes, experts;
};

void expect_meshes_agree(const std::string& recipe, const Changes& changes,
                         const std::vector<Mesh>& meshes, double tolerance = 1e-5) {
  TempDir folder;
  train_in_processes(folder / "one", 1, recipe, changes);
  for (const Mesh& mesh : meshes) {
    const std::string name = fmt::format("{}x{}", mesh.processes, mesh.experts);
    SCOPED_TRACE(name);
    Changes with = changes;
    with.push_back(fmt::format("parallel.expert_parallel_size={}", mesh.experts));
    train_in_processes(folder / name, mesh.processes, recipe, with);
    expect_same_run(folder / "one", folder / name, tolerance);
  }
}

const std::vector<Mesh> kMeshes = {{2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}};

TEST(ProcessesRun, VMoEMakesTheStepsOfOneProcess) {
  expect_meshes_agree(vmoe_recipe(kMoE), {}, kMeshes);
}

/// Two images of every part lie in each of two processes, one in each of four.
TEST(ProcessesRun, GroupsOfTokensWithinProcessesAreRoutedAlone) {
  expect_meshes_agree(vmoe_recipe(kMoE), {"model.encoder.moe.num_group_images=1"}, kMeshes);
  expect_meshes_agree(vmoe_recipe(kMoE), {"model.encoder.moe.num_group_images=2"},
                      {{2, 1}, {2, 2}, {4, 2}});
}

TEST(ProcessesRun, LayersComputedAgainMakeTheStepsOfOneProcess) {
  expect_meshes_agree(vmoe_recipe(kMoE), {"activation_checkpointing=true"}, {{2, 1}, {4, 2}});
}

// Networks this small change their routing for a difference in the last bits, so with more that is
// random a dozen steps are compared.
TEST(ProcessesRun, SoTheyDoWithStridedPartsAndMixup) {
  expect_meshes_agree(vmoe_recipe(kMoE),
                      {"activation_checkpointing=true", "phases.train.steps=12",
                       "phases.train.micro_batch_order=strided", "phases.train.augment.mixup=0.5"},
                      {{2, 1}, {4, 2}});
}

TEST(ProcessesRun, E3MakesTheStepsOfOneProcess) {
  const std::string recipe = vmoe_recipe(R"({"layers": [1], "num_experts": 4, "ensemble_size": 2,
      "group_size": 40, "router": {"num_selected_experts": 1, "noise_std": 1.0,
      "importance_loss_weight": 0.005, "load_loss_weight": 0.005,
      "dispatcher": {"capacity_factor": 1.5}}})");
  expect_meshes_agree(recipe, {"phases.train.loss=ensemble_softmax"}, {{2, 1}, {4, 2}});
  expect_meshes_agree(recipe,
                      {"phases.train.loss=ensemble_softmax", "model.encoder.moe.group_size=0",
                       "model.encoder.moe.num_group_images=1"},
                      {{2, 1}, {4, 2}});
}

TEST(ProcessesRun, DropoutFallsAsInOneProcess) {
  expect_meshes_agree(vmoe_recipe(kMoE),
                      {"model.encoder.dropout_rate=0.2", "model.encoder.moe.dropout_rate=0",
                       "phases.train.steps=12"},
                      {{2, 1}, {4, 2}});
}

TEST(ProcessesRun, ProductsInBfloat16AgreeMoreLoosely) {
  expect_meshes_agree(vmoe_recipe(kMoE), {"precision=bfloat16", "phases.train.steps=5"},
                      {{2, 1}, {2, 2}}, 0.03);
}

TEST(ProcessesRun, StateOfTheOptimizerIsSharedOut) {
  expect_meshes_agree(vmoe_recipe(kMoE),
                      {"parallel.shard_optimizer=true", "phases.train.optimizer.name=adamw",
                       "phases.train.optimizer.lr=0.001", "phases.train.steps=20"},
                      {{2, 1}, {4, 2}});
}

TEST(ProcessesRun, FilterExpertsMakeTheStepsOfOneProcess) {
  const std::string recipe =
      R"({"name": "clusters", "seed": 1, "log_every": 1, "model": {"name": "cluster-moe",
      "num_experts": 8, "num_filters": 16, "activation": "cubic", "init_scale": 0.001, "router": {}},
    "evaluate_batch_size": 4000, "phases": [{"name": "train", "data": "clusters-setting1",
      "batch_size": 4000, "steps": 50, "loss": "softmax_twice", "optimizer": {"name": "sgd", "lr": 0.1},
      "optimizers": [{"parameters": ["^moe.experts"], "optimizer": {"name": "normalized_sgd",
        "lr": 0.001}}]}]})";
  expect_meshes_agree(recipe, {}, {{2, 1}, {2, 2}, {4, 2}});
}

TEST(ProcessesRun, PatchExpertsMakeTheStepsOfOneProcess) {
  const std::string recipe =
      R"({"name": "patches", "seed": 1, "log_every": 1, "model": {"preset": "pmoe/joint",
      "image_size": [16, 50], "patch_size": [1, 50], "num_neurons": 8, "router": {"num_selected_patches": 4}},
    "evaluate_batch_size": 250, "phases": [{"name": "train", "data": "patch-patterns", "num_samples": 200,
      "batch_size": 20, "steps": 50, "optimizer": {"name": "sgd", "lr": 0.05}, "evaluate": true}]})";
  expect_meshes_agree(recipe, {}, {{2, 1}, {2, 2}, {4, 4}});
}

/// Trains by `first` for 50 steps, takes the checkpoints behind step 20 away, and goes on with each
/// mesh.
void expect_gone_on_with(const std::string& recipe, const std::vector<Mesh>& meshes,
                         const Mesh& first = {4, 4}) {
  TempDir folder;
  const Changes changes = {"phases.train.evaluate=false", "num_checkpoints=9"};
  train_in_processes(folder / "one", 1, recipe, changes);
  Changes by_first = changes;
  by_first.push_back(fmt::format("parallel.expert_parallel_size={}", first.experts));
  by_first.push_back(fmt::format("parallel.shard_optimizer={}", first.processes > 1));
  train_in_processes(folder / "first", first.processes, recipe, by_first);
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(mesh.processes);
    const fs::path run = folder / fmt::format("rest{}", mesh.processes);
    fs::copy(folder / "first", run, fs::copy_options::recursive);
    for (const char* later : {"train", "step_40", "step_50"}) {
      ASSERT_GT(fs::remove_all(run / "checkpoints" / later), 0u) << later;
    }
    fs::remove_all(run / "best");
    Changes with = changes;
    with.push_back(fmt::format("parallel.expert_parallel_size={}", mesh.experts));
    const TrainResult rest = train_in_processes(run, mesh.processes, recipe, with, true);
    EXPECT_EQ(rest.steps, 50);
    expect_same_run(folder / "one", run);
  }
}

TEST(ProcessesRun, ACheckpointOfFourIsGoneOnWithByTwoAndByOne) {
  expect_gone_on_with(vmoe_recipe(kMoE), {{2, 2}, {1, 1}, {4, 2}});
}

TEST(ProcessesRun, ACheckpointOfOneOrTwoIsGoneOnWithByFour) {
  expect_gone_on_with(vmoe_recipe(kMoE), {{4, 2}}, {1, 1});
  expect_gone_on_with(vmoe_recipe(kMoE), {{4, 4}}, {2, 2});
}

/// WRN-pMoE: experts whose maps lie beside each other, and batch norms.
const char* const kWrnPMoE = R"({"name": "maps", "seed": 2, "log_every": 1, "checkpoint_every": 20,
    "evaluate_batch_size": 4, "num_loader_threads": 1, "model": {"name": "wrn-pmoe", "image_size": 16,
      "channels": 1, "num_classes": 3, "widen_factor": 0.125,
      "moe": {"num_experts": 4, "patch_size": 2, "kernel_size": 3, "router": {"num_selected_patches": 2}}},
    "phases": [{"name": "train", "data": "three", "preprocess": {"size": 16}, "batch_size": 8,
      "steps": 50, "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9}, "evaluate": true}]})";

/// The clusters paper's networks of whole images, whose gradients are normalised expert by expert.
const char* const kImageMoE = R"({"name": "images", "seed": 2, "log_every": 1,
    "checkpoint_every": 20, "evaluate_batch_size": 4, "num_loader_threads": 1, "model": {"name":
      "image-moe", "expert": "cnn", "num_experts": 4, "image_size": 4, "channels": 1, "num_classes": 3,
      "width": 0.1, "router": {}},
    "phases": [{"name": "train", "data": "three", "batch_size": 8, "steps": 50,
      "loss": "softmax_twice", "aux_losses": {"switch_balance": 0.001},
      "optimizer": {"name": "sgd", "lr": 1e-4, "momentum": 0.9},
      "optimizers": [{"parameters": ["^moe.experts"], "optimizer": {"name": "normalized_sgd",
        "lr": 0.01, "momentum": 0.9}}], "evaluate": true}]})";

TEST(ProcessesRun, MapExpertsMakeTheStepsOfOneProcess) {
  const std::vector<Mesh> meshes = {{2, 1}, {2, 2}, {4, 2}, {4, 4}};
  expect_meshes_agree(kWrnPMoE, {"seed=1"}, meshes);
  // Rounding may change which patches an expert chooses: of seeds 1 to 5, seed 2 leaves the bound
  // from step 46 on.
  expect_meshes_agree(kWrnPMoE, {"seed=2", "phases.train.steps=40"}, meshes);
}

TEST(ProcessesRun, ImageExpertsMakeTheStepsOfOneProcess) {
  expect_meshes_agree(kImageMoE, {}, {{2, 1}, {2, 2}, {4, 2}, {4, 4}});
}

TEST(ProcessesRun, NamedExpertsOfACheckpointGoToThoseWhoHaveThem) {
  expect_gone_on_with(kImageMoE, {{2, 2}, {1, 1}, {4, 2}});
}

/// A phase whose batches are shared, one of single samples that every process makes, and again one
/// that is shared, in another way: experts and state are shared out and gathered between them.
TEST(ProcessesRun, PhasesOfBothKindsFollowEachOther) {
  const std::string recipe =
      R"({"name": "patches", "seed": 1, "log_every": 1, "checkpoint_every": 15, "num_checkpoints": 9,
      "num_loader_threads": 1, "evaluate_batch_size": 250, "model": {"preset": "pmoe/joint",
      "image_size": [16, 50], "patch_size": [1, 50], "num_neurons": 8, "router": {"num_selected_patches": 4}},
    "phases": [
      {"name": "shared", "data": "patch-patterns", "num_samples": 200, "batch_size": 20, "steps": 20,
       "optimizer": {"name": "adamw", "lr": 0.001}},
      {"name": "single", "kind": "patch_sgd", "data": "patch-patterns", "num_samples": 20, "steps": 20,
       "chunk_size": 5},
      {"name": "again", "data": "patch-patterns", "num_samples": 200, "batch_size": 40, "steps": 20,
       "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}]})";
  expect_meshes_agree(recipe, {"parallel.shard_optimizer=true"}, {{2, 1}, {2, 2}, {4, 2}});

  // Going on from the middle of the phase that is not shared, whose state every process has whole.
  TempDir folder;
  const Changes by_four = {"parallel.shard_optimizer=true", "parallel.expert_parallel_size=2"};
  train_in_processes(folder / "four", 4, recipe, by_four);
  fs::copy(folder / "four", folder / "rest", fs::copy_options::recursive);
  for (const char* later : {"single", "again", "step_40", "step_45", "step_60"}) {
    ASSERT_GT(fs::remove_all(folder / "rest" / "checkpoints" / later), 0u) << later;
  }
  const TrainResult rest =
      train_in_processes(folder / "rest", 2, recipe, {"parallel.shard_optimizer=true"}, true);
  EXPECT_EQ(rest.steps, 60);
  expect_same_run(folder / "four", folder / "rest");
}

/// Networks that differ where a phase ends, as by rounding, are one where the next begins.
TEST(ProcessesRun, APhaseBeginsWithTheNetworkOfProcess0) {
  const std::string recipe = R"({"name": "two", "seed": 3, "num_loader_threads": 0, "model": )" +
                             std::string(kModel) + R"(,
    "phases": [{"name": "first", "data": "three", "batch_size": 6, "steps": 2, "evaluate": false,
                "optimizer": {"name": "sgd", "lr": 0.1}},
               {"name": "second", "data": "three", "batch_size": 6, "steps": 2, "evaluate": false,
                "optimizer": {"name": "sgd", "lr": 0.1}}]})";
  std::vector<std::string> hashes(2);
  run_processes(2, {}, [&](const auto& processes) {
    TrainerOptions options = options_with_described("");
    options.processes = processes;
    options.on_phase_end = [&](Model& model, const std::string& phase, int64_t) {
      const torch::NoGradGuard no_grad;
      const bool differs = phase == "first" && !processes->is_rank_zero();
      for (at::Tensor& parameter : model.parameters()) {
        if (differs) parameter.add_(0.125);
      }
    };
    Trainer trainer(config_of(recipe, {}), options);
    trainer.run();
    hashes[static_cast<size_t>(processes->rank())] = hash_of(state_of(*trainer.model()));
  });
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(ProcessesRun, AnEvaluationThatOneProcessEndsEndsInAll) {
  const Value config = Value::from_json(Json::parse(kModel), "model");
  run_processes(2, {}, [&](const auto& processes) {
    EvaluateOptions options;
    options.batch_size = 4;
    options.processes = processes;
    options.on_progress = [&](int64_t done, int64_t) {
      return processes->is_rank_zero() || done < 4;
    };
    EXPECT_FALSE(
        evaluate(*build_model(config, 1), open_tiny("three", "test"), options).is_complete);
  });
}

TEST(ProcessesRun, SomeOfTheNamedExpertsCannotBeTrainedBySharers) {
  const Changes some = {"phases.train.trainable=[\"experts.0\", \"router\"]",
                        "phases.train.optimizers=[]", "phases.train.steps=2"};
  const auto error_with = [&](const char* num_expert_ranks) {
    Changes changes = some;
    changes.emplace_back(num_expert_ranks);
    return error_of([&] { train_in_processes("", 2, kImageMoE, changes); });
  };
  EXPECT_THAT(error_with("parallel.expert_parallel_size=2"), HasSubstr("trains only some experts"));
  EXPECT_EQ(error_with("parallel.expert_parallel_size=1"), "no error");
}

TEST(ProcessesRun, ProcessesWithOtherDataAreRefused) {
  const RunConfig config = config_of(vmoe_recipe(kMoE), {});
  const auto train = [&](const auto& processes) {
    TrainerOptions options = options_with_described("");
    options.processes = processes;
    if (!processes->is_rank_zero()) {
      options.open = [](std::string_view name, std::string_view split) {
        return quarters(std::string(name), std::string(split), 3, split == "train" ? 19 : 9);
      };
    }
    Trainer(config, options).run();
  };
  EXPECT_THAT(error_of([&] { run_processes(2, config.parallel, train); }),
              ::testing::StartsWith(
                  "usage: process 1 has another data than process 0 (three train 19 images"));
}

TEST(ProcessesRun, ProcessesWithAnotherRecipeAreRefused) {
  const auto train = [](const auto& processes) {
    TrainerOptions options = options_with_described("");
    options.processes = processes;
    const Changes changes = {processes->is_rank_zero() ? "seed=3" : "seed=4"};
    Trainer(config_of(vmoe_recipe(kMoE), changes), options).run();
  };
  EXPECT_EQ(error_of([&] { run_processes(2, {}, train); }),
            "usage: process 1 has another recipe than process 0: 'seed' is 4, not 3");
}

/// Returns the bytes by purpose that process 0 sends in a step, and those of the plan. Without
/// shared experts all processes are replicas, and one sum has all gradients.
std::pair<std::map<std::string, double>, std::map<std::string, double>> bytes_of_step(
    const std::string& recipe, Changes changes, const Mesh& mesh) {
  changes.insert(changes.end(), {"phases.train.steps=10",
                                 fmt::format("parallel.expert_parallel_size={}", mesh.experts)});
  const RunConfig config = config_of(recipe, changes);
  std::map<Traffic, TrafficTotal> sent;
  run_processes(mesh.processes, config.parallel, [&](const auto& processes) {
    TrainerOptions options = options_with_described("");
    options.processes = processes;
    Trainer(config, options).run();
    processes->world().barrier();
    if (processes->is_rank_zero()) sent = processes->counter().take();
  });
  const std::shared_ptr<Model> shape = build_initial_meta_model(config);
  DatasetCache datasets(open_tiny);
  const PhasePlan plan = plan_phases(config, *shape, datasets).front();
  std::map<std::string, double> bytes, planned;
  for (const auto& [traffic, count] : sent) bytes[traffic_name(traffic)] += count.bytes / 10;
  for (const Collective& collective :
       plan_scaling(*shape, plan, mesh.processes, config.parallel).collectives) {
    const bool in_one = mesh.experts == 1 && collective.name == "expert_gradients";
    planned[in_one ? "gradients" : collective.name] += collective.bytes;
  }
  for (const char* few : {"metrics", "other"}) {  // The model rounds these up, or leaves them out.
    bytes.erase(few);
    planned.erase(few);
  }
  return {bytes, planned};
}

TEST(ProcessesRun, SendsTheBytesOfTheModel) {
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{4, 2}, Mesh{4, 4}}) {
    for (const Changes& changes : {Changes{}, Changes{"model.encoder.moe.num_group_images=1"}}) {
      SCOPED_TRACE(fmt::format("{}x{} {}", mesh.processes, mesh.experts, changes.size()));
      const auto [bytes, planned] = bytes_of_step(vmoe_recipe(kMoE), changes, mesh);
      EXPECT_EQ(planned.contains("logits"), changes.empty());
      EXPECT_EQ(bytes.size(), planned.size());
      for (const auto& [name, expected] : planned) {
        ASSERT_TRUE(bytes.contains(name)) << name;
        // Drops by capacity are not modelled, so fewer rows may travel.
        EXPECT_NEAR(bytes.at(name), expected, (name == "rows" ? 0.4 : 0.05) * expected) << name;
      }
    }
  }
}

TEST(ProcessesRun, SendsNoGradientsOfImages) {
  const auto [bytes, planned] = bytes_of_step(kImageMoE, {}, {2, 2});
  // The experts are not quite balanced; with gradients of the images it would be 1.7 times as much.
  EXPECT_NEAR(bytes.at("rows"), planned.at("rows"), 0.25 * planned.at("rows"));
}

TEST(ProcessesRun, SendsTheTokensOfMapsToAllThatShareExperts) {
  const auto [bytes, planned] = bytes_of_step(kWrnPMoE, {}, {4, 2});
  EXPECT_NEAR(bytes.at("rows"), planned.at("rows"), 0.01 * planned.at("rows"));
  // Runs count the sums of all norms as one; some have the number of values beside.
  const double of_norms = planned.at("batch_norm") + planned.at("expert_batch_norm");
  EXPECT_NEAR(bytes.at("batch_norm"), of_norms, 0.08 * of_norms);
}

}  // namespace
}  // namespace moesaic
