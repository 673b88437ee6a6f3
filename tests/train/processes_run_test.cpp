// SPDX-License-Identifier: Apache-2.0
// Runs of several processes, which are threads here, make the steps of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "support/processes.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using test::run_processes;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Changes = std::vector<std::string>;

TrainResult train_in_processes(const fs::path& out, int64_t size, const std::string& recipe,
                               const Changes& changes, bool resume = false) {
  TrainResult result;
  const RunConfig config = config_of(recipe, changes);
  run_processes(size, config.parallel, [&](const auto& processes) {
    TrainerOptions options = options_with_described(out, resume);
    if (size > 1) options.processes = processes;
    const TrainResult own = Trainer(config_of(recipe, changes), options).run();
    if (processes->leads()) result = own;
  });
  return result;
}

std::vector<Json> lines_of(const fs::path& run) {
  std::vector<Json> lines;
  std::istringstream text(read_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
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
      EXPECT_LE(std::abs(a - b), tolerance * (std::abs(a) + 1e-3))
          << place << ": " << a << ", " << b;
    } else {
      EXPECT_EQ(value, found) << place;
    }
  }
}

void expect_same_run(const fs::path& one, const fs::path& other, double tolerance = 1e-5) {
  const std::vector<Json> a = lines_of(one), b = lines_of(other);
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
    "evaluate_batch_size": 4, "loader_threads": 1, "model": {"name": ")" +
         std::string(moe.find("ensemble") == std::string::npos ? "vmoe" : "e3") +
         R"(", "image_size": 4, "patch_size": 2, "hidden_size": 8, "classes": 3,
     "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 16, "moe": )" +
         moe + R"(}},
    "phases": [{"name": "train", "data": "three", "batch_size": 8, "accumulate": 2, "steps": 50,
      "clip_norm": 0.5, "optimizer": {"name": "adamw", "lr": 0.003, "weight_decay": 0.05},
      "augment": {"flip": true, "shift": 1}, "evaluate": true}]})";
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
    with.push_back(fmt::format("parallel.experts={}", mesh.experts));
    train_in_processes(folder / name, mesh.processes, recipe, with);
    expect_same_run(folder / "one", folder / name, tolerance);
  }
}

const std::vector<Mesh> kMeshes = {{2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}};

TEST(ProcessesRun, VMoEMakesTheStepsOfOneProcess) {
  expect_meshes_agree(vmoe_recipe(kMoE), {}, kMeshes);
}

TEST(ProcessesRun, SoItDoesWithRecomputeStridedPartsAndMixup) {
  expect_meshes_agree(
      vmoe_recipe(kMoE),
      {"recompute=true", "phases.train.accumulate_order=strided", "phases.train.augment.mixup=0.5"},
      {{2, 1}, {4, 2}});
}

}  // namespace
}  // namespace moesaic
