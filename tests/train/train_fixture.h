// SPDX-License-Identifier: Apache-2.0
// Runs that take milliseconds: images of 4 x 4 pixels in memory, a network of a few hundred
// numbers, and ways to look at what a run left.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/random.h"
#include "moesaic/base/signal.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/trainer.h"

namespace moesaic::train_test {

namespace fs = std::filesystem;

using test::TempDir;

/// Images whose class shows in one quarter of them, with noise all over.
inline std::shared_ptr<const Dataset> quarters(const std::string& name, const std::string& split,
                                               int64_t classes, int64_t images) {
  DatasetInfo info{name, split, "", {}, 1, 4, 4, {0.4}, {0.3}};
  for (int64_t c = 0; c < classes; ++c) info.classes.push_back("class " + std::to_string(c));
  CounterRng rng(split == "train" ? 3 : 4, stream_id(name), 0);
  std::vector<uint8_t> pixels, labels;
  for (int64_t i = 0; i < images; ++i) {
    labels.push_back(static_cast<uint8_t>(i % classes));
    for (int64_t p = 0; p < 16; ++p) {
      const bool lit = (p / 8) * 2 + (p % 4) / 2 == i % classes;
      pixels.push_back(static_cast<uint8_t>((lit ? 120 : 0) + rng.randint(120)));
    }
  }
  return make_memory_dataset(info, pixels, labels);
}

/// "three" and "two" classes, 18 images to train, 9 to test; any other name is unknown.
inline std::shared_ptr<const Dataset> open_tiny(std::string_view name, std::string_view split) {
  if (name != "three" && name != "two") fail_usage("unknown dataset '{}'", name);
  const int64_t images = split == "train" ? 18 : 9;
  return quarters(std::string(name), std::string(split), name == "three" ? 3 : 2, images);
}

/// Opens the same as having these splits.
inline DatasetOpener open_with_splits(const std::vector<std::string>& splits) {
  return DatasetOpener(open_tiny, [splits](std::string_view) { return splits; });
}

/// Calls `before` ahead of every image that is read.
class WatchedDataset : public Dataset {
 public:
  WatchedDataset(std::shared_ptr<const Dataset> base, std::function<void()> before)
      : Dataset(base->info()), base_(std::move(base)), before_(std::move(before)) {}
  int64_t size() const override { return base_->size(); }
  int64_t label(int64_t index) const override { return base_->label(index); }
  void oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const override {
    before_();
    base_->image(index, out);
  }

 private:
  std::shared_ptr<const Dataset> base_;
  std::function<void()> before_;
};

inline const char* const kModel = R"({"name": "vmoe", "image_size": 4, "patch_size": 2,
    "hidden_size": 8, "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 8, "moe":
    {"layers": [1], "num_experts": 4, "router": {"num_selected_experts": 2, "noise_std": 1.0}}}})";

inline void fill_with_cosines(Model& model) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    parameter.copy_(at::linspace(-1, 1, parameter.numel()).cos().view(parameter.sizes()));
  }
}

/// Its parameters are cosines.
inline std::shared_ptr<Model> tiny_model(const std::string& text = kModel) {
  const auto model = build_model(Document::from_text(text, "model").root(), 9);
  fill_with_cosines(*model);
  return model;
}

/// Twelve steps through every kind of phase: 6, 3, 0 and 3.
inline std::string four_phases() {
  return std::string(R"({
  "name": "tiny", "seed": 5, "log_every": 5, "checkpoint_every": 1, "num_checkpoints": 100,
  "evaluate_batch_size": 4, "num_loader_threads": 0, "model": )") +
         kModel + R"(,
  "phases": [
    {"name": "pretrain", "data": "three", "batch_size": 4, "steps": 6, "clip_norm": 1.0,
     "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.05},
     "schedule": {"name": "cosine", "warmup_steps": 2},
     "aux_losses": {"importance": 0.01, "gshard": 0.02, "load": 0.01}, "augment": {"flip": true, "max_shift": 1}},
    {"name": "finetune", "data": "two", "batch_size": 4, "steps": 3, "label_smoothing": 0.1,
     "optimizer": {"name": "sgd", "lr": 0.05}, "on_entry": {"new_head": true}},
    {"name": "prune", "data": "two", "steps": 0,
     "on_entry": {"prune": {"keep": 0.5, "pretrained": "pretrain"}}},
    {"name": "recover", "data": "two", "batch_size": 6, "epochs": 1,
     "optimizer": {"name": "adamw", "lr": 0.003}, "evaluate": true}
  ]})";
}

inline RunConfig config_of(const std::string& json, const std::vector<std::string>& changes = {}) {
  Document document = Document::from_text(json, "recipe.json");
  for (const std::string& change : changes) document.set(change);
  return parse<RunConfig>(document.root());
}

inline TrainerOptions options_for(const fs::path& out, bool resume = false) {
  TrainerOptions options;
  options.out = out;
  options.resume = resume;
  options.show_progress = false;
  options.open = open_tiny;
  return options;
}

/// The same with the datasets that are described, beside those of open_tiny().
inline TrainerOptions options_with_described(const fs::path& out, bool resume = false) {
  TrainerOptions options = options_for(out, resume);
  options.open = [](std::string_view name, std::string_view split) {
    const bool tiny = name == "three" || name == "two";
    return tiny ? open_tiny(name, split) : open_dataset(name, split);
  };
  return options;
}

inline TrainResult train(const fs::path& out, const std::vector<std::string>& changes = {},
                         bool resume = false) {
  return Trainer(config_of(four_phases(), changes), options_for(out, resume)).run();
}

/// Trains until it is complete or `image` images of `split` were read, when `signal` comes.
inline TrainResult train_until(const RunConfig& config, TrainerOptions options,
                               const std::string& split, int image, int signal = SIGTERM) {
  int images = 0;
  const StopSignal stop;
  options.stop = &stop;
  options.open = [&](std::string_view name, std::string_view opened) {
    return std::make_shared<WatchedDataset>(open_tiny(name, opened), [&, counts = opened == split] {
      if (counts && images++ == image) std::raise(signal);
    });
  };
  return Trainer(config, options).run();
}

inline std::vector<Json> metric_lines(const fs::path& run) {
  std::vector<Json> lines;
  std::istringstream text(read_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// Those of a kind.
inline std::vector<Json> metric_lines(const fs::path& run, const std::string& kind) {
  std::vector<Json> lines = metric_lines(run);
  std::erase_if(lines, [&](const Json& line) { return line.at("kind") != kind; });
  return lines;
}

/// Compares the checkpoints of a step.
inline void expect_same_step(const fs::path& a, const fs::path& b, int64_t step) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const fs::path name = fs::path("checkpoints/step_" + std::to_string(step)) / file;
    EXPECT_TRUE(read_text(a / name) == read_text(b / name)) << name << " differs";
  }
}

/// All bits that a finished run must repeat. config.json is left out: it says how many threads made
/// the batches.
inline std::map<std::string, std::string> bits(const fs::path& run) {
  std::map<std::string, std::string> found;
  found["metrics.jsonl"] = read_text(run / "metrics.jsonl");
  for (const char* folder : {"checkpoints/pretrain", "checkpoints/finetune", "checkpoints/prune",
                             "checkpoints/recover", "checkpoints/step_12", "best"}) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      found[std::string(folder) + "/" + file] = read_text(run / folder / file);
    }
  }
  return found;
}

inline void expect_equal_bits(const fs::path& a, const fs::path& b) {
  const auto first = bits(a), second = bits(b);
  for (const auto& [name, text] : first) {
    EXPECT_TRUE(text == second.at(name)) << name << " differs";
  }
}

/// What is left of a finished run when its process dies right after its checkpoint of `step`.
inline void copy_killed_after(const fs::path& run, int64_t step, const fs::path& to) {
  fs::copy(run, to, fs::copy_options::recursive);
  fs::remove_all(to / "best");
  for (const auto& entry : fs::directory_iterator(to / "checkpoints")) {
    const auto state = nlohmann::json::parse(read_text(entry.path() / "state.json"));
    if (state["step"] > step) fs::remove_all(entry.path());
  }
}

/// What `action` throws, with its kind as a prefix: "usage: ..." or "failure: ...".
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::usage ? "usage: " : "failure: ") + std::string(error.what());
  }
  return "no error";
}

}  // namespace moesaic::train_test
