// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/loader.h"

#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <latch>
#include <set>
#include <thread>

#include "data/data_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::usage_of;

DatasetInfo small_info() {
  DatasetInfo info{.name = "small",
                   .channels = 2,
                   .height = 3,
                   .width = 4,
                   .mean = {0.25, 0.5},
                   .std = {0.5, 0.25}};
  for (int i = 0; i < 256; ++i) info.classes.push_back(std::to_string(i));
  return info;
}

/// Image i is different from all others and has label i.
std::shared_ptr<const Dataset> small_dataset(int64_t size) {
  std::vector<uint8_t> pixels(static_cast<size_t>(size * 24)), labels(static_cast<size_t>(size));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 29 + i / 24);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i);
  return make_memory_dataset(small_info(), std::move(pixels), std::move(labels));
}

/// A dataset that calls back whenever an image is read.
class WatchedDataset final : public Dataset {
 public:
  WatchedDataset(int64_t size, std::function<void(int64_t)> on_read)
      : Dataset(small_info()), size_(size), on_read_(std::move(on_read)) {}
  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % 256; }
  void oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const override {
    on_read_(index);
    std::fill_n(out, image_size(), static_cast<uint8_t>(index));
  }

 private:
  int64_t size_;
  std::function<void(int64_t)> on_read_;
};

LoaderOptions augmented(int64_t threads) {
  return {.batch_size = 8,
          .seed = 11,
          .shuffle = true,
          .num_threads = threads,
          .prefetch = 3,
          .augment = {true, 1}};
}

std::vector<int64_t> labels_of(const Batch& batch) {
  const auto* data = batch.labels.const_data_ptr<int64_t>();
  return {data, data + batch.labels.numel()};
}

std::vector<int64_t> epoch_labels(Loader& loader) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    for (const int64_t label : labels_of(loader.next())) labels.push_back(label);
  }
  return labels;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.position, b.position);
  EXPECT_TRUE(at::equal(a.inputs, b.inputs)) << "epoch " << a.epoch << " batch " << a.position;
  EXPECT_TRUE(at::equal(a.labels, b.labels)) << "epoch " << a.epoch << " batch " << a.position;
}

TEST(Batch, MovesItsTensorsToADevice) {
  Batch batch{at::ones({2, 1, 2, 2}), at::zeros({2}, at::kLong), {}, 3, 4};
  const Batch soft = [&] {
    Batch other = batch;
    other.soft_labels = at::ones({2, 5});
    other.targets = at::ones({2, 1});
    return other.to(at::kMeta);
  }();
  batch = batch.to(at::kMeta);
  EXPECT_TRUE(batch.inputs.is_meta() && batch.labels.is_meta() && soft.soft_labels.is_meta() &&
              soft.targets.is_meta());
  EXPECT_FALSE(batch.soft_labels.defined());
  EXPECT_FALSE(batch.targets.defined());
  EXPECT_EQ(batch.epoch, 3);
  EXPECT_EQ(batch.position, 4);
}

TEST(Loader, UnshuffledEpochKeepsTheOrderAndEnds) {
  for (const int64_t threads : {0, 2}) {
    Loader loader(small_dataset(10), {.batch_size = 4, .num_threads = threads});
    EXPECT_EQ(loader.batches_per_epoch(), 3);
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(4, 5, 6, 7));
    EXPECT_FALSE(loader.is_done());
    const Batch last = loader.next();
    EXPECT_THAT(labels_of(last), ElementsAre(8, 9));
    EXPECT_EQ(last.inputs.sizes(), at::IntArrayRef({2, 2, 3, 4}));
    EXPECT_EQ(last.position, 2);
    EXPECT_TRUE(loader.is_done());
    EXPECT_THAT(usage_of([&] { loader.next(); }), HasSubstr("no batch after"));
    loader.seek(0, 1);
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(4, 5, 6, 7));
  }
}

TEST(Loader, GivesNormalisedFloatsAndLabels) {
  const auto dataset = small_dataset(3);
  Loader loader(dataset, {.batch_size = 3});
  const Batch batch = loader.next();
  EXPECT_EQ(batch.inputs.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.labels.scalar_type(), at::kLong);
  ASSERT_EQ(batch.inputs.sizes(), at::IntArrayRef({3, 2, 3, 4}));
  std::vector<uint8_t> pixels(24);
  for (int64_t i = 0; i < 3; ++i) {
    dataset->image(i, pixels.data());
    for (int64_t p = 0; p < 24; ++p) {
      const float mean = p < 12 ? 0.25f : 0.5f;
      const float std = p < 12 ? 0.5f : 0.25f;
      EXPECT_EQ(batch.inputs.view({3, 24})[i][p].item<float>(),
                (static_cast<float>(pixels[static_cast<size_t>(p)]) / 255.0f - mean) / std);
    }
  }
}

TEST(Loader, EveryShuffledEpochIsAnotherOrderOfAllImages) {
  LoaderOptions options{.batch_size = 7, .seed = 5, .shuffle = true};
  Loader loader(small_dataset(50), options);
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> labels = epoch_labels(loader);
    orders.insert(labels);
    std::sort(labels.begin(), labels.end());
    for (int64_t i = 0; i < 50; ++i) ASSERT_EQ(labels.at(static_cast<size_t>(i)), i);
    EXPECT_FALSE(loader.is_done());
  }
  options.seed = 6;
  Loader other(small_dataset(50), options);
  orders.insert(epoch_labels(other));
  EXPECT_EQ(orders.size(), 5u);
}

TEST(Loader, DropLastLeavesOutTheSmallerBatch) {
  const LoaderOptions options{.batch_size = 4, .drop_last = true};
  Loader loader(small_dataset(10), options);
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(epoch_labels(loader).size(), 8u);
  EXPECT_TRUE(loader.is_done());
  Loader whole(small_dataset(8), options);
  EXPECT_EQ(whole.batches_per_epoch(), 2);
}

TEST(Loader, SameBitsForAnyNumberOfThreads) {
  const auto dataset = small_dataset(50);
  for (const int64_t threads : {1, 2, 4}) {
    Loader reference(dataset, augmented(0));
    Loader loader(dataset, augmented(threads));
    for (int i = 0; i < 4 * 7; ++i) expect_same(loader.next(), reference.next());
  }
}

TEST(Loader, SeekGivesTheBatchesOfAnUnbrokenRun) {
  const auto dataset = small_dataset(50);
  Loader reference(dataset, augmented(0));
  std::vector<Batch> batches;
  for (int i = 0; i < 3 * 7; ++i) batches.push_back(reference.next());
  for (const int64_t threads : {0, 1, 3}) {
    Loader loader(dataset, augmented(threads));
    for (const int64_t number : {17, 0, 6, 7, 20, 3, 3}) {
      loader.seek(number / 7, number % 7);
      for (int64_t i = number; i < std::min<int64_t>(number + 3, 21); ++i) {
        expect_same(loader.next(), batches[static_cast<size_t>(i)]);
      }
    }
    loader.seek(0, 7);  // the end of an epoch is the beginning of the next
    expect_same(loader.next(), batches[7]);
  }
}

TEST(Loader, AugmentationChangesFromEpochToEpoch) {
  LoaderOptions options = augmented(0);
  options.shuffle = false;
  Loader loader(small_dataset(50), options);
  std::vector<Batch> firsts;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.seek(epoch, 0);
    firsts.push_back(loader.next());
    EXPECT_EQ(firsts.back().epoch, epoch);
  }
  EXPECT_TRUE(at::equal(firsts[0].labels, firsts[1].labels));
  EXPECT_FALSE(at::equal(firsts[0].inputs, firsts[1].inputs));
  loader.seek(1, 7);
  EXPECT_TRUE(loader.is_done());
}

TEST(Loader, AugmentationBelongsToThePlaceInTheEpoch) {
  const auto dataset = small_dataset(20);
  LoaderOptions options = augmented(2);
  Loader loader(dataset, options);
  loader.seek(3, 1);
  const Batch batch = loader.next();
  const ImageTransform transform(dataset->info(), options.augment);
  for (int64_t i = 0; i < 8; ++i) {
    std::vector<uint8_t> pixels(24);
    dataset->image(batch.labels[i].item<int64_t>(), pixels.data());
    at::Tensor expected = at::empty({2, 3, 4});
    CounterRng rng = augment_rng(options.seed, 3, 8 + i);
    transform(pixels.data(), rng, expected.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(batch.inputs[i], expected)) << i;
  }
}

TEST(Loader, ErrorsOfWorkersArriveInTheirTurn) {
  const auto dataset = std::make_shared<WatchedDataset>(20, [](int64_t index) {
    if (index == 9) fail("image 9 is broken");
  });
  for (const int64_t threads : {0, 1, 4}) {
    Loader loader(dataset, {.batch_size = 4, .num_threads = threads});
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(4, 5, 6, 7));
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(failure_of([&] { loader.next(); }), HasSubstr("image 9 is broken"));
    }
    loader.seek(0, 3);
    EXPECT_THAT(labels_of(loader.next()), ElementsAre(12, 13, 14, 15));
  }
}

TEST(Loader, WorkersStayWithinThePrefetch) {
  std::atomic<int64_t> taken = 0, furthest = 0;
  const auto dataset = std::make_shared<WatchedDataset>(200, [&](int64_t index) {
    // next() counts a batch as taken just before this test does.
    if (index > taken + 1 + 2) furthest = index;
  });
  Loader loader(dataset, {.num_threads = 4, .prefetch = 2});
  for (; taken < 200; ++taken) loader.next();
  EXPECT_EQ(furthest, 0);
}

/// Counts the end of the thread that has it.
struct CountsEnd {
  std::atomic<int>* ended = nullptr;
  ~CountsEnd() {
    if (ended == nullptr) return;
    ++*ended;
    ended->notify_all();
  }
};

TEST(Loader, DestructorDoesNotFinishTheBatch) {
  constexpr int64_t kImages = 1000, kBatch = kImages - 4;
  std::atomic<int> begun = 0, ended = 0, reads = 0;
  // The thread that is first to read an image of the large batch does not get it before the other
  // one has ended, which it does in the destructor.
  const auto dataset = std::make_shared<WatchedDataset>(kImages, [&](int64_t index) {
    thread_local CountsEnd end;
    thread_local bool waits = false;
    if (index >= kBatch) return;
    if (end.ended == nullptr) {
      end.ended = &ended;
      waits = begun++ == 0;
      begun.notify_all();
      if (waits) ended.wait(0);
    }
    if (waits) ++reads;
  });
  {
    Loader loader(dataset, {.batch_size = kBatch, .num_threads = 2});
    loader.seek(0, 1);
    EXPECT_EQ(loader.next().labels.numel(), 4);
    loader.seek(0, 0);
    for (int now = begun; now < 2; now = begun) begun.wait(now);
    const Loader moved = std::move(loader);
    EXPECT_EQ(moved.batches_per_epoch(), 2);
  }
  EXPECT_EQ(reads, 1) << "it left the rest of its images";
  EXPECT_EQ(ended, 2) << "no worker is left";
}

TEST(Loader, AnUnusedOneIsFine) {
  Loader loader(small_dataset(3), augmented(4));
  EXPECT_EQ(loader.batches_per_epoch(), 1);
  Loader other(small_dataset(30), augmented(4));
  other.next();
  other = std::move(loader);
  EXPECT_EQ(other.next().labels.numel(), 3);
}

TEST(Loader, WrongOptionsAreRefused) {
  const auto refuse = [](const std::function<void(LoaderOptions&)>& change, int64_t size = 10) {
    LoaderOptions options{.batch_size = 4};
    change(options);
    return usage_of([&] { Loader loader(small_dataset(size), options); });
  };
  EXPECT_THAT(refuse([](auto& o) { o.batch_size = 0; }), HasSubstr("batch_size"));
  EXPECT_THAT(refuse([](auto& o) { o.num_threads = -1; }), HasSubstr("threads"));
  EXPECT_THAT(refuse([](auto& o) { o.num_threads = 100000; }), HasSubstr("threads"));
  EXPECT_THAT(refuse([](auto& o) { o.prefetch = 0; }), HasSubstr("prefetch"));
  EXPECT_THAT(refuse([](auto& o) { o.augment.max_shift = 3; }), HasSubstr("max_shift"));
  EXPECT_THAT(refuse([](auto&) {}, 0), HasSubstr("no images"));
  EXPECT_THAT(refuse([](auto& o) { o.drop_last = true; }, 3),
              AllOf(HasSubstr("drop_last"), HasSubstr("3 images")));
}

TEST(Loader, SeeksOutsideAreRefused) {
  Loader loader(small_dataset(10), augmented(1));
  const auto refuse = [&](int64_t epoch, int64_t batch) {
    return usage_of([&] { loader.seek(epoch, batch); });
  };
  EXPECT_THAT(refuse(-1, 0), HasSubstr("epoch -1 does not exist"));
  EXPECT_THAT(refuse(INT64_MAX, 0), HasSubstr("does not exist"));
  EXPECT_THAT(refuse(0, -1), HasSubstr("batch -1 does not exist"));
  EXPECT_THAT(refuse(0, 3), HasSubstr("batch 3 does not exist: an epoch has 2"));
  EXPECT_EQ(loader.next().position, 0) << "a refused seek changes nothing";
}

TEST(Loader, BytesNormaliseToTheBitsOfFloats) {
  const auto dataset = small_dataset(50);
  const at::Tensor mean = at::tensor({0.25, 0.5}, at::kFloat),
                   std = at::tensor({0.5, 0.25}, at::kFloat);
  for (const int64_t threads : {0, 3}) {
    LoaderOptions options = augmented(threads);
    Loader floats(dataset, options);
    options.keeps_bytes = true;
    Loader bytes(dataset, options);
    for (int i = 0; i < 2 * 7; ++i) {
      Batch batch = bytes.next();
      ASSERT_EQ(batch.inputs.scalar_type(), at::kByte);
      batch.inputs = normalised(batch.inputs, mean, std);
      expect_same(batch, floats.next());
    }
  }
}

TEST(Loader, ThreadsShareEachBatch) {
  constexpr int64_t kThreads = 8;
  std::latch together(kThreads);
  // Image 0 to 7 are the pieces' first ones: each waits until all eight are being read.
  const auto dataset =
      std::make_shared<WatchedDataset>(kThreads, [&](int64_t) { together.arrive_and_wait(); });
  LoaderOptions options;
  options.batch_size = options.num_threads = kThreads;
  Loader loader(dataset, options);
  EXPECT_THAT(labels_of(loader.next()), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Loader, BatchesAheadFollowTheThreads) {
  LoaderOptions options{.batch_size = 8, .num_threads = 4};
  EXPECT_EQ(batches_ahead(options, true), 2);
  EXPECT_EQ(batches_ahead(options, false), 5);  // A thread makes a whole batch.
  options.batch_size = 1;
  EXPECT_EQ(batches_ahead(options, true), 5);
  options.prefetch = 3;
  EXPECT_EQ(batches_ahead(options, true), 3);
}

TEST(Loader, TheFirstOfSeveralErrorsOfABatchArrives) {
  std::latch others(3);  // Each of the four threads reads two images.
  const auto dataset = std::make_shared<WatchedDataset>(8, [&](int64_t index) {
    if (index == 1) others.wait();
    if (index % 2 == 0) return;
    if (index > 1) others.count_down();
    fail("image {} is broken", index);
  });
  Loader loader(dataset, {.batch_size = 8, .num_threads = 4});
  EXPECT_THAT(failure_of([&] { loader.next(); }), HasSubstr("image 1 is"));
}

TEST(Loader, IsReadyOnceABatchIs) {
  const auto dataset = small_dataset(20);
  Loader none(dataset, augmented(0));
  EXPECT_FALSE(none.is_ready());
  Loader loader(dataset, augmented(2));
  loader.next();
  while (!loader.is_ready()) std::this_thread::yield();  // It comes without another next().
  EXPECT_EQ(loader.next().position, 1);
}

}  // namespace
}  // namespace moesaic
