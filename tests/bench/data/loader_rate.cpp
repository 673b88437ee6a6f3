// SPDX-License-Identifier: Apache-2.0
// Images a second of this loader, for tests/bench/data/loader_rate.py:
//   loader_rate FOLDER THREADS SIZE BATCH IMAGES
// decodes FOLDER/train, crops and resizes at random, flips, normalises, and prints the rate.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double rate(const std::string& folder, int64_t threads, int64_t size, int64_t batch,
            int64_t images) {
  moesaic::PreprocessConfig preprocess;
  preprocess.size = size;
  moesaic::LoaderOptions options;
  options.batch_size = batch;
  options.shuffle = true;
  options.drop_last = true;
  options.num_threads = threads;
  options.augment.flip = true;
  options.augment.crop.emplace();
  moesaic::Loader loader(moesaic::preprocessed(moesaic::open_dataset(folder, "train"), preprocess),
                         options);
  for (int64_t i = 0; i < 2 * threads; ++i) loader.next();  // not counted: everything starts
  const double begin = seconds();
  int64_t done = 0;
  while (done < images) done += loader.next().labels.size(0);
  return static_cast<double>(done) / (seconds() - begin);
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) {
    std::fprintf(stderr, "usage: loader_rate FOLDER THREADS SIZE BATCH IMAGES\n");
    return 2;
  }
  try {
    std::printf("%.2f\n", rate(words[1], std::atol(words[2]), std::atol(words[3]),
                               std::atol(words[4]), std::atol(words[5])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
