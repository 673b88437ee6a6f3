// SPDX-License-Identifier: Apache-2.0
// Photos for training: this library's loader and a DataLoader of PyTorch with as many workers, on
// the same JPEG files.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "moesaic/export/formats.h"
#include "moesaic/report/throughput.h"

namespace moesaic::bench {
namespace {

constexpr int64_t kSize = 224, kBatch = 32, kCounted = 960;
constexpr int kLoaderTurns = 5;
constexpr size_t kMaxPhotos = 512;
constexpr const char* kPeer = "tests/bench/data/loader_peer.py";

std::vector<fs::path> photos() {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::recursive_directory_iterator at(download_folder("imagenet"), ignored), end;
       at != end && found.size() < kMaxPhotos; at.increment(ignored)) {
    const std::string ending = at->path().extension().string();
    const bool is_jpeg = ending == ".jpg" || ending == ".jpeg" || ending == ".JPEG";
    if (is_jpeg) found.push_back(fs::absolute(at->path()));
  }
  return found;
}

/// Fills a folder with links to the photos, each used as often as it takes.
void link_photos(const std::vector<fs::path>& files, int64_t threads, const fs::path& folder) {
  const fs::path place = folder / "train" / "all";
  fs::create_directories(place);
  const int64_t needed = kCounted + (2 * threads + 1) * kBatch;
  for (int64_t i = 0; i < needed; ++i) {
    fs::create_symlink(files[static_cast<size_t>(i) % files.size()],
                       place / fmt::format("{:04}.jpg", i));
  }
}

/// Images a second: decoded, cropped and resized at random, flipped, normalised.
double own_rate(const fs::path& folder, int64_t threads) {
  PreprocessConfig preprocess;
  preprocess.size = kSize;
  LoaderOptions options;
  options.batch_size = kBatch;
  options.shuffle = true;
  options.drop_last = true;
  options.num_threads = threads;
  options.augment.flip = true;
  options.augment.crop.emplace();
  Loader loader(preprocessed(open_dataset(folder.string(), "train"), preprocess), options);
  for (int64_t i = 0; i < 2 * threads; ++i) loader.next();  // not counted: everything starts
  const auto begin = std::chrono::steady_clock::now();
  int64_t done = 0;
  while (done < kCounted) done += loader.next().labels.size(0);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(done) / spent.count();
}

struct PeerRate {
  std::string name;
  double images_per_second;
};

PeerRate peer_rate(const char* kind, const fs::path& folder, int64_t threads) {
  std::string said;
  std::vector<std::string> command = {export_python().string(), resource(kPeer).string(), kind,
                                      folder.string()};
  for (const int64_t number : {threads, kSize, kBatch, kCounted}) {
    command.push_back(std::to_string(number));
  }
  const int status = run_with_input(command, "", {}, {}, &said);
  std::string last;
  for (const std::string& line : split(said, '\n')) {
    if (!line.empty()) last = line;
  }
  if (status != 0) fail("{}: {}", kPeer, last);
  const auto found = nlohmann::json::parse(last);
  return {found.at("name"), found.at("rate")};
}

Row loader_row(const char* kind, double goal) {
  const int64_t threads = at::get_num_threads();
  const std::vector<fs::path> files = photos();
  const StagedDirectory folder(fs::temp_directory_path() / "moesaic-bench-data");
  link_photos(files, threads, folder.path());
  std::vector<double> ours, peer;
  std::string name;
  for (int turn = 0; turn < kLoaderTurns; ++turn) {
    if (turn % 2 == 0) ours.push_back(own_rate(folder.path(), threads));
    const PeerRate found = peer_rate(kind, folder.path(), threads);
    name = found.name;
    peer.push_back(found.images_per_second);
    if (turn % 2 == 1) ours.push_back(own_rate(folder.path(), threads));
  }
  Row row;
  row.ours = median(ours);
  row.peer = median(peer);
  row.unit = "1/s";
  row.ratio = row.ours / row.peer;
  row.at_least = goal;
  row.description =
      fmt::format("a DataLoader with {}, {} each, {} photos to {} pixels; ratio is ours / baseline",
                  name, count_text(threads, "worker"), files.size(), kSize);
  return row;
}

}  // namespace

void bench_data(const Report& report) {
  if (!data_left_out().empty()) return;
  report("cpu/loader", [] { return loader_row("pillow", 2.5); });
  report("cpu/loader_torchvision", [] { return loader_row("torchvision", 1.0); });
}

std::string data_left_out() {
  if (!fs::exists(resource(kPeer))) return "data: the baseline is a script of the source tree";
  if (!photos().empty()) return "";
  return fmt::format("data: no JPEG files in {}; put photos or a link there",
                     download_folder("imagenet").string());
}

}  // namespace moesaic::bench
