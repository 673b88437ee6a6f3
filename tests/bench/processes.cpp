// SPDX-License-Identifier: Apache-2.0
// Training on several processes. The rows of two processes start this program again, as torchrun
// would; the overlap of gradients with the backward pass is timed on a link of a known speed.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "bench.h"
#include "delayed_group.h"
#include "moesaic/base/process.h"
#include "moesaic/models/registry.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/report/throughput.h"
#include "moesaic/train/trainer.h"
#include "one_thread.h"
#include "scratch_folder.h"

namespace moesaic::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 3, kTimedSteps = 8, kShareBatch = 64;
constexpr int kShareTurns = 3, kSavesTimed = 40;
/// File that process 0 of a pair writes its seconds a step to.
constexpr const char* kSecondsFile = "MOESAIC_BENCH_SECONDS";
constexpr const char* kSettings = "MOESAIC_BENCH_SETTINGS";

/// A V-MoE of 12 million parameters on images of 96 pixels, with 8 experts in every other block.
constexpr const char* kShareRecipe = R"({"name": "processes", "seed": 1,
  "model": {"name": "vmoe", "image_size": 96, "channels": 3, "patch_size": 16, "hidden_size": 256,
    "num_classes": 10, "encoder": {"num_layers": 4, "num_heads": 4, "mlp_dim": 1024, "moe": {"layers": [1, 3],
    "num_experts": 8, "router": {"num_selected_experts": 2, "dispatcher": {"capacity_factor": 1.5}}}}},
  "phases": [{"name": "train", "data": "noise", "batch_size": 64, "steps": 1000, "loss": "softmax",
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9}, "evaluate": false}]})";

std::shared_ptr<const Dataset> noise_images(std::string_view, std::string_view split) {
  DatasetInfo info{"noise",         std::string(split), "", {}, 3, 96, 96,
                   {0.5, 0.5, 0.5}, {0.3, 0.3, 0.3}};
  for (int64_t c = 0; c < 10; ++c) info.classes.push_back(std::to_string(c));
  std::vector<uint8_t> pixels(static_cast<size_t>(4 * kShareBatch) * 3 * 96 * 96), labels;
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<uint8_t>((i * 2654435761U) >> 13);
  for (int64_t i = 0; i < 4 * kShareBatch; ++i) labels.push_back(static_cast<uint8_t>(i % 10));
  return make_memory_dataset(info, pixels, labels);
}

RunConfig share_config(const std::vector<std::string>& settings) {
  Document document = Document::from_text(kShareRecipe, "bench");
  for (const std::string& setting : settings) document.set(setting);
  return parse<RunConfig>(document.root());
}

/// Returns the median seconds of a step of training.
double step_seconds(const RunConfig& config, std::shared_ptr<const ProcessMesh> processes) {
  std::vector<double> seconds;
  auto last = Clock::now();
  TrainerOptions options;
  options.show_progress = false;
  options.processes = std::move(processes);
  options.open = noise_images;
  options.on_step = [&](Model&, int64_t step) {
    const auto now = Clock::now();
    if (step > kWarmUp) seconds.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
    return step < kWarmUp + kTimedSteps;
  };
  Trainer(config, options).run();
  return median(std::move(seconds));
}

int free_port() {
  const UniqueFd holder(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(holder.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail("bench: no port is free");
  }
  return ntohs(address.sin_port);
}

/// Starts this program as two processes of one thread each; returns their seconds a step.
double seconds_of_two(const std::string& settings) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "seconds";
  const std::string port = std::to_string(free_port());
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  std::array<int, 2> codes = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      codes[static_cast<size_t>(rank)] = run_with_input(
          {self, "bench", "processes"}, "",
          {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
           "MASTER_PORT=" + port, "OMP_NUM_THREADS=1", std::string(kSettings) + "=" + settings,
           std::string(kSecondsFile) + "=" + file.string()});
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (codes[0] != 0 || codes[1] != 0) fail("bench: a process of two failed");
  return std::stod(read_text(file));
}

/// What a process of two does.
void be_one_of_two(const Launch& launch) {
  const char* const settings = std::getenv(kSettings);
  const char* const file = std::getenv(kSecondsFile);
  if (settings == nullptr || file == nullptr) {
    fail_usage("bench: 'processes' starts its processes itself; run it as one");
  }
  const RunConfig config = share_config(*settings == '\0' ? std::vector<std::string>{}
                                                          : std::vector<std::string>{settings});
  const auto processes = ProcessMesh::connect(launch, config.parallel);
  const double seconds = step_seconds(config, processes);
  if (processes->is_rank_zero()) write_atomic(file, std::to_string(seconds));
  processes->world().barrier();
}

Times alternate_turns(const std::function<double()>& ours, const std::function<double()>& peer) {
  std::vector<double> own, other;
  for (int turn = 0; turn < kShareTurns; ++turn) {
    own.push_back(ours());
    other.push_back(peer());
  }
  return {median(own), median(other)};
}

/// What the two send does not depend on the images of a step: the gradients of all parameters.
Row of_two(int64_t images, std::optional<double> goal) {
  const std::string setting = fmt::format("phases.train.batch_size={}", images);
  const auto one = [&] {
    at::set_num_threads(2);
    return step_seconds(share_config({setting}), nullptr);
  };
  const Times times = alternate_turns([&] { return seconds_of_two(setting); }, one);
  return faster(times, goal,
                fmt::format("a step of {} images on two processes with a thread each; baseline: "
                            "one process with two threads",
                            images));
}

Row is_expert_parallel() {
  const Times times =
      alternate_turns([] { return seconds_of_two("parallel.expert_parallel_size=2"); },
                      [] { return seconds_of_two(""); });
  return faster(
      times, 0.8,
      "a step of two processes that share the experts; baseline: with all experts in both");
}

/// A forward and a backward pass whose gradients go over a link that takes `delay` for each of
/// their buckets.
class LinkedStep {
 public:
  explicit LinkedStep(const std::shared_ptr<Model>& model) : model_(model) {
    images_ = torch::rand({8, 3, 96, 96});
  }

  /// Returns the seconds of a step, the median of several.
  double seconds(std::chrono::duration<double> delay) {
    const ProcessGroup group(make_delayed_group(delay), std::make_shared<TrafficCounter>());
    GradientReducer reducer(model_->parameters(), group, Traffic::gradients, kBucketBytes);
    std::vector<double> times;
    for (int step = 0; step < 9; ++step) {
      for (at::Tensor& parameter : model_->parameters()) parameter.mutable_grad().reset();
      const auto begin = Clock::now();
      const at::Tensor loss = model_->forward(images_).logits.square().mean();
      reducer.prepare(loss);
      loss.backward();
      if (step > 1) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return median(times);
  }

  double buckets() const {
    return static_cast<double>(model_->num_parameters()) * sizeof(float) / kBucketBytes;
  }

 private:
  static constexpr size_t kBucketBytes = size_t{2} << 20;

  std::shared_ptr<Model> model_;
  at::Tensor images_;
};

/// The link takes as long as the computing.
Row of_overlap() {
  const OneThread one_thread;
  const auto model = RunStart(share_config({})).model();
  model->train();
  LinkedStep step(model);
  const std::chrono::duration<double> none(0.0);
  const double alone = step.seconds(none);
  const double buckets = std::ceil(step.buckets());
  const std::chrono::duration<double> delay(alone / buckets);
  std::vector<double> linked, computing;
  for (int turn = 0; turn < kShareTurns; ++turn) {
    linked.push_back(step.seconds(delay));
    computing.push_back(step.seconds(none));
  }
  const double sending = 1e3 * delay.count() * buckets, computed = 1e3 * median(computing);
  return at_most(
      1e3 * median(linked), std::max(computed, sending), "ms", 1.15,
      fmt::format("a step whose gradients take {:.0f} ms on a link; baseline: the larger of that "
                  "and of computing, {:.0f} ms; the ratio is ours / baseline",
                  sending, computed));
}

/// Returns the median over saves of what one adds to the seconds of the steps that begin with it,
/// compared with as many steps before and after. The first save, which takes the memory of the
/// copy, is left out. One run, since the speed of a machine drifts by more than what is measured,
/// and many saves, of which one is measured to some 40 ms.
double seconds_lost_to_a_save() {
  constexpr int64_t kSteps = 7;  // About 1.2 s, in which a save is written.
  constexpr int64_t kSaveEvery = 3 * kSteps;
  const ScratchFolder folder;
  const std::vector<std::string> settings = {
      "model.hidden_size=512", "model.encoder.mlp_dim=2048", "phases.train.batch_size=2",
      fmt::format("phases.train.steps={}", (kSavesTimed + 2) * kSaveEvery),
      fmt::format("checkpoint_every={}", kSaveEvery)};
  std::vector<Clock::time_point> begins;  // Of steps, counted from 0; a step ends with its save.
  TrainerOptions options;
  options.show_progress = false;
  options.open = noise_images;
  options.out = folder.path() / "run";
  const fs::path checkpoints = options.out / "checkpoints";
  options.on_step = [&](Model&, int64_t step) {
    begins.push_back(Clock::now());
    const int64_t saved = step + 1 - kSteps;
    if (saved > 0 && saved % kSaveEvery == 0 && !fs::exists(checkpoints / step_name(saved))) {
      fail("bench: a save took longer than the steps that are timed with it");
    }
    return true;
  };
  Trainer(share_config(settings), options).run();
  const auto seconds = [&](int64_t first, int64_t count) {
    const auto begin = static_cast<size_t>(first), end = static_cast<size_t>(first + count);
    return std::chrono::duration<double>(begins[end] - begins[begin]).count();
  };
  std::vector<double> lost;
  for (int64_t save = 2; save <= kSavesTimed + 1; ++save) {
    const int64_t first = save * kSaveEvery - 1;
    const double undisturbed = seconds(first - kSteps, kSteps) + seconds(first + kSteps, kSteps);
    lost.push_back(seconds(first, kSteps) - undisturbed / 2);
  }
  return median(lost);
}

/// Returns the seconds of a copy of what a save stores: parameters and momentum.
double seconds_of_copy() {
  const auto model =
      RunStart(share_config({"model.hidden_size=512", "model.encoder.mlp_dim=2048"})).model();
  TensorMap tensors = state_of(*model), copy;
  for (const auto& item : model->named_parameters()) {
    tensors[item.key() + ".momentum"] = torch::zeros_like(item.value());
  }
  std::vector<double> seconds;
  for (int turn = 0; turn < 6; ++turn) {
    const auto begin = Clock::now();
    snapshot(tensors, copy);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(seconds);
}

/// With one thread to train, so that another core writes.
Row of_pause() {
  const OneThread one_thread;
  const double lost = seconds_lost_to_a_save(), copied = seconds_of_copy();
  return at_most(1e3 * lost, 1e3 * copied, "ms", 1.5,
                 "what a save adds to the time of training on one thread; baseline: the copy of "
                 "its tensors; the ratio is ours / baseline");
}

}  // namespace

void bench_processes(const Report& report) {
  const Launch launch = read_launch(process_environment());
  if (!launch.is_single_process()) return be_one_of_two(launch);
  report("cpu/overlap", of_overlap);
  report("cpu/two_processes", [&] { return of_two(kShareBatch, 0.9); });
  report("cpu/two_processes_of_few_images", [&] { return of_two(kShareBatch / 2, {}); });
  report("cpu/expert_parallel", is_expert_parallel);
  report("cpu/pause_of_save", of_pause);
}

}  // namespace moesaic::bench
