// SPDX-License-Identifier: Apache-2.0
// Reading photos for training. The other side runs in Python, in turn with this program.
#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <span>
#include <system_error>
#include <thread>

#include "bench.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/random.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "moesaic/export/formats.h"
#include "moesaic/formats/image.h"
#include "moesaic/report/throughput.h"
#include "scratch_folder.h"

namespace moesaic::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSize = 224, kBatch = 32, kCounted = 1000;
constexpr int kLoaderTurns = 5, kGenerated = 64;
/// A folder of JPEG files, at any depth, in place of generated ones.
constexpr const char* kPhotos = "MOESAIC_BENCH_PHOTOS";

/// Returns a JPEG of 500 x 375 pixels with details of all sizes, about as long as ImageNet's.
std::string generated_photo(uint64_t seed) {
  constexpr int64_t kHeight = 375, kWidth = 500;
  at::Tensor photo = at::full({1, 3, kHeight, kWidth}, 128.0f);
  CounterRng rng(seed, stream_id("bench.photo"), 0);
  for (int64_t cells = 4; cells <= 256; cells *= 2) {
    at::Tensor noise = at::empty({1, 3, cells, cells});
    float* values = noise.mutable_data_ptr<float>();
    for (int64_t i = 0; i < noise.numel(); ++i) values[i] = static_cast<float>(rng.normal());
    photo += at::upsample_bicubic2d(noise, {kHeight, kWidth}, false) * 20.0;
  }
  const at::Tensor bytes_HWC = photo[0].clamp(0, 255).to(at::kByte).permute({1, 2, 0}).contiguous();
  const std::span pixels(bytes_HWC.const_data_ptr<uint8_t>(),
                         static_cast<size_t>(bytes_HWC.numel()));
  return encode_jpeg({pixels, kHeight, kWidth, 3}, 92);
}

std::vector<fs::path> photos_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string suffix = entry.path().extension().string();
    for (char& c : suffix) c = static_cast<char>(std::tolower(c));
    if (suffix == ".jpg" || suffix == ".jpeg") files.push_back(fs::canonical(entry.path()));
  }
  if (files.empty()) fail_usage("{}={}: no JPEG files", kPhotos, folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

/// A dataset with as many files as a turn reads, so that no side begins an epoch in it.
class Photos {
 public:
  explicit Photos(int64_t num_workers) {
    const char* const given = std::getenv(kPhotos);
    std::vector<fs::path> files;
    if (given != nullptr) files = photos_below(given);
    for (int i = 0; given == nullptr && i < kGenerated; ++i) {
      files.push_back(scratch_.path() / fmt::format("{}.jpg", i));
      write_atomic(files.back(), generated_photo(static_cast<uint64_t>(i)));
    }
    source_ = given == nullptr ? "generated photos" : fmt::format("{} photos", files.size());
    fs::create_directories(folder() / "all");
    const int64_t count = kCounted + (2 * num_workers + 1) * kBatch;
    for (int64_t i = 0; i < count; ++i) {
      fs::create_symlink(files[static_cast<size_t>(i) % files.size()],
                         folder() / "all" / fmt::format("{}.jpg", i));
    }
    write_atomic(description(),
                 fmt::format(R"({{"name": "photos", "format": "image_folder", "paths": ["{}"],
                              "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}})",
                             scratch_.path().string()));
  }
  fs::path folder() const { return scratch_.path() / "train"; }
  fs::path description() const { return scratch_.path() / "photos.json"; }
  const std::string& source() const { return source_; }

 private:
  ScratchFolder scratch_;
  std::string source_;
};

double our_rate(const Photos& photos, int64_t num_workers) {
  PreprocessConfig preprocess;
  preprocess.size = kSize;
  LoaderOptions options{
      .batch_size = kBatch, .shuffle = true, .drop_last = true, .num_threads = num_workers};
  options.augment.flip = true;
  // Of the crops' sizes it is the side that is uniform, torchvision's area of 0.08 to 1: with this
  // least area, crops of photos of 4:3 are as large in the mean.
  options.augment.crop.emplace().min_area = 0.165;
  Loader loader(preprocessed(open_dataset(photos.description().string(), "train"), preprocess),
                options);
  for (int64_t i = 0; i < 2 * num_workers; ++i) loader.next();  // Not counted: everything starts.
  const auto begin = Clock::now();
  int64_t done = 0;
  while (done < kCounted) done += loader.next().labels.size(0);
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Rate {
  double per_second = 0;
  std::string name;  ///< of what was timed
};

Rate peer_rate(const Photos& photos, int64_t num_workers, const std::string& kind) {
  std::string said;
  const int code = run_with_input(
      {export_python().string(), "-B", resource("tests/bench/loader_peer.py").string(),
       photos.folder().string(), std::to_string(num_workers), std::to_string(kSize),
       std::to_string(kBatch), std::to_string(kCounted), kind},
      "", {"OMP_NUM_THREADS=1"}, {}, &said);
  said.erase(said.find_last_not_of(" \n") + 1);
  const std::string last = said.substr(said.rfind('\n') + 1);
  const size_t end = last.find(' ');
  double rate = 0;
  const auto parsed = std::from_chars(last.data(), last.data() + std::min(end, last.size()), rate);
  if (code != 0 || parsed.ec != std::errc() || end == last.npos)
    fail("the baseline cannot be timed: {}", last);
  return {rate, last.substr(end + 1)};
}

Row against(const std::string& kind, int64_t num_workers, std::optional<double> goal) {
  const Photos photos(num_workers);
  std::vector<double> ours, peer;
  std::string name;
  for (int turn = 0; turn < kLoaderTurns; ++turn) {
    if (turn % 2 == 0) ours.push_back(our_rate(photos, num_workers));
    const Rate rate = peer_rate(photos, num_workers, kind);
    if (turn % 2 == 1) ours.push_back(our_rate(photos, num_workers));
    peer.push_back(rate.per_second);
    name = rate.name;
  }
  return at_least(
      median(ours), median(peer), "img/s", goal,
      fmt::format("{} (JPEG) decoded, cropped at random to {} pixels, flipped and normalised; "
                  "baseline: {}; workers: {} each; the ratio is ours / baseline",
                  photos.source(), kSize, name, num_workers));
}

bool has_torchvision() {
  constexpr const char* kFind =
      "import importlib.util, sys; sys.exit(importlib.util.find_spec('torchvision') is None)";
  try {
    std::string said;
    return run_with_input({export_python().string(), "-c", kFind}, "", {}, {}, &said) == 0;
  } catch (const Error&) {
    return false;  // The rows say what is wrong with Python.
  }
}

}  // namespace

void bench_data(const Report& report) {
  const auto all = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  report("cpu/loader", [&] { return against("pillow", all, 2.5); });
  report("cpu/loader_one_worker", [&] { return against("pillow", 1, 2.5); });
  report("cpu/loader_draft", [&] { return against("draft", all, {}); });
  if (!has_torchvision()) return;
  report("cpu/loader_decoder", [&] { return against("decoder", all, {}); });
}

std::string data_left_out() {
  return has_torchvision() ? "" : "cpu/loader_decoder: left out, since Python has no torchvision";
}

}  // namespace moesaic::bench
