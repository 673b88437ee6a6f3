// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/loader.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/random.h"
#include "moesaic/base/text.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/mixup.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr size_t kCachedOrders = 4;

using Order = std::shared_ptr<const std::vector<int64_t>>;

void check_options(const Dataset& dataset, const LoaderOptions& options) {
  if (options.batch_size < 1) {
    fail_usage("loader: batch_size must be at least 1, not {}", options.batch_size);
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail_usage("loader: threads must be 0 to {}, not {}", kMaxThreads, options.threads);
  }
  if (options.prefetch < 1) {
    fail_usage("loader: prefetch must be at least 1, not {}", options.prefetch);
  }
  if (dataset.size() == 0) {
    fail_usage("loader: dataset '{}' has no images", dataset.info().name);
  }
  if (!dataset.has_images() && to_json(options.augment) != to_json(AugmentConfig())) {
    fail_usage(
        "loader: '{}' has inputs that are no images: nothing of 'augment' can be done to "
        "them",
        dataset.info().name);
  }
  if (options.augment.mixup > 0 && dataset.info().classes.empty()) {
    fail_usage("loader: the targets of '{}' are no classes: 'mixup' cannot mix them",
               dataset.info().name);
  }
  if (options.drop_last && dataset.size() < options.batch_size) {
    fail_usage("loader: drop_last leaves no batch: '{}' has {}, batch_size is {}",
               dataset.info().name, count_text(dataset.size(), "image"), options.batch_size);
  }
}

/// Cache of the orders of the last few epochs, each drawn once for all threads.
class EpochOrders {
 public:
  EpochOrders(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}

  Order at(int64_t epoch) {
    const std::lock_guard lock(mutex_);
    Order& order = orders_[epoch];
    if (order == nullptr) {
      const uint64_t stream = mix64(stream_id("loader.shuffle") + static_cast<uint64_t>(epoch));
      order = std::make_shared<const std::vector<int64_t>>(permutation(size_, seed_, stream));
    }
    const Order found = order;
    while (orders_.size() > kCachedOrders) {
      orders_.erase(orders_.begin()->first == epoch ? std::prev(orders_.end()) : orders_.begin());
    }
    return found;
  }

 private:
  int64_t size_;
  uint64_t seed_;
  std::mutex mutex_;
  std::map<int64_t, Order> orders_;
};

/// Set of the damaged images of a dataset.
class DamagedImages {
 public:
  explicit DamagedImages(const Dataset& dataset)
      : dataset_(dataset), size_(dataset.size()), max_(std::max<int64_t>(1, size_ / 100)) {}

  /// Returns whether an image is damaged. Throws, like add(), if too many are.
  bool contains(int64_t index) {
    const std::lock_guard lock(mutex_);
    check();
    return indices_.contains(index);
  }

  void add(int64_t index, const ImageError& error) {
    const std::lock_guard lock(mutex_);
    if (!indices_.insert(index).second) return;
    log_warning("{}; the next image takes its place", error.what());
    last_ = error.what();
    check_class(index);
    check();
  }

 private:
  void check() const {
    const auto count = static_cast<int64_t>(indices_.size());
    if (count > max_ || count == size_) {
      fail("{} of {} images are damaged{}, the last one being {}", count, size_, of_one_class(),
           last_);
    }
  }

  /// Warns where the image was the last readable one of its class.
  void check_class(int64_t index) {
    if (dataset_.endless() || dataset_.info().classes.empty()) return;
    if (sound_.empty()) {
      sound_.resize(dataset_.info().classes.size());
      for (int64_t i = 0; i < size_; ++i) ++sound_[static_cast<size_t>(dataset_.label(i))];
    }
    const auto label = static_cast<size_t>(dataset_.label(index));
    if (--sound_[label] > 0) return;
    log_warning("dataset '{}': no image of class '{}' can be read", dataset_.info().name,
                dataset_.info().classes[label]);
  }

  /// Returns " (all of class 'cat')" where that is so.
  std::string of_one_class() const {
    if (sound_.size() < 2) return "";
    const int64_t label = dataset_.label(*indices_.begin());
    const bool one = std::all_of(indices_.begin(), indices_.end(),
                                 [&](int64_t index) { return dataset_.label(index) == label; });
    const std::string& name = dataset_.info().classes[static_cast<size_t>(label)];
    return one ? fmt::format(" (all of class '{}')", name) : "";
  }

  const Dataset& dataset_;
  int64_t size_, max_;
  std::mutex mutex_;
  std::set<int64_t> indices_;
  std::vector<int64_t> sound_;  ///< Number of images by class that are not damaged, once needed.
  std::string last_;
};

/// Makes the images of a batch; each thread needs its own object.
class ImageReader {
 public:
  ImageReader(const Dataset& dataset, const AugmentConfig& augment, const ImageTransform& transform,
              DamagedImages& damaged)
      : dataset_(dataset),
        augment_(augment),
        transform_(transform),
        damaged_(damaged),
        bytes_(static_cast<size_t>(dataset.image_size())) {}

  /// Writes the values of image `index`, or of the next readable one, to `out`. Returns the index
  /// of that image. Random choices come from `rng`.
  int64_t make(int64_t index, const CounterRng& rng, float* out) {
    while (true) {
      CounterRng random = rng;
      if (try_read(index, random)) {
        transform_(bytes_.data(), random, out);
        return index;
      }
      index = dataset_.endless() ? index + 1 : (index + 1) % dataset_.size();
    }
  }

 private:
  bool try_read(int64_t index, CounterRng& rng) {
    if (damaged_.contains(index)) return false;
    try {
      if (augment_.crop) {
        const auto choose = [&](int64_t h, int64_t w) {
          return random_part(*augment_.crop, h, w, rng);
        };
        dataset_.part(index, choose, bytes_.data());
      } else {
        dataset_.image(index, bytes_.data());
      }
      return true;
    } catch (const ImageError& error) {
      damaged_.add(index, error);
      return false;
    }
  }

  const Dataset& dataset_;
  const AugmentConfig& augment_;
  const ImageTransform& transform_;
  DamagedImages& damaged_;
  std::vector<uint8_t> bytes_;
};

}  // namespace

Batch Batch::to(at::Device device) const {
  Batch moved = *this;
  for (at::Tensor* tensor : {&moved.images, &moved.labels, &moved.soft_labels, &moved.targets}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  return moved;
}

/// State of a Loader. Batches have numbers epoch * batches_per_epoch + position.
class Loader::State {
 public:
  State(std::shared_ptr<const Dataset> data, LoaderOptions loader_options)
      : dataset(std::move(data)),
        options(loader_options),
        inputs_(dataset->inputs()),
        transform_(dataset->info(), options.augment),
        orders_(dataset->size(), options.seed),
        damaged_(*dataset) {
    const int64_t rest = dataset->size() % options.batch_size;
    batches = dataset->size() / options.batch_size + (rest > 0 && !options.drop_last ? 1 : 0);
    images = options.drop_last ? dataset->size() - rest : dataset->size();
    seek(0, 0);
  }

  ~State() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      ++generation_;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void seek(int64_t epoch, int64_t batch) {
    if (epoch < 0 || epoch >= std::numeric_limits<int64_t>::max() / dataset->size() - 1) {
      fail_usage("loader: there is no epoch {}", epoch);
    }
    if (batch < 0 || batch > batches) {
      fail_usage("loader: there is no batch {} in an epoch of {}", batch, batches);
    }
    {
      const std::lock_guard lock(mutex_);
      next_ = claim_ = epoch * batches + batch;
      end_ = options.shuffle ? std::numeric_limits<int64_t>::max() : (epoch + 1) * batches;
      ready_.clear();
      ++generation_;
    }
    work_.notify_all();
  }

  bool done() const { return next_ == end_; }

  Batch next() {
    if (done()) {
      fail_usage("loader: '{}' has no batch after the last one of an unshuffled epoch",
                 dataset->info().name);
    }
    if (options.threads > 0) return take();
    Batch batch = *make(next_, generation_);
    ++next_;
    return batch;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  int64_t batches = 0, images = 0;

 private:
  struct Result {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  /// Waits for the next batch and returns it. A failed one stays the next.
  Batch take() {
    while (static_cast<int64_t>(threads_.size()) < options.threads) {
      threads_.emplace_back([this] { work(); });
    }
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return ready_.contains(next_); });
    const auto found = ready_.find(next_);
    if (found->second.error) std::rethrow_exception(found->second.error);
    Batch batch = std::move(*found->second.batch);
    ready_.erase(found);
    ++next_;
    lock.unlock();
    work_.notify_one();
    return batch;
  }

  /// Runs a worker thread, which claims numbers in order, at most `prefetch` ahead of next_.
  void work() {
    omp_set_num_threads(1);  // Other workers already use the remaining cores.
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] {
        return stopping_ || (claim_ < end_ && claim_ - next_ < options.prefetch);
      });
      if (stopping_) return;
      const int64_t number = claim_++;
      const uint64_t generation = generation_;
      lock.unlock();
      Result result = try_make(number, generation);
      lock.lock();
      if (generation != generation_) continue;  // A seek has made the batch obsolete.
      ready_[number] = std::move(result);
      arrived_.notify_one();
    }
  }

  Result try_make(int64_t number, uint64_t generation) {
    Result result;
    try {
      result.batch = make(number, generation);
    } catch (...) {
      result.error = std::current_exception();
    }
    return result;
  }

  /// Makes a batch; returns nothing if a seek or the destructor interferes.
  std::optional<Batch> make(int64_t number, uint64_t generation) {
    Batch batch;
    batch.epoch = number / batches;
    batch.position = number % batches;
    const int64_t begin = batch.position * options.batch_size;
    const int64_t count = std::min(options.batch_size, images - begin);
    if (!dataset->has_images()) {
      take_inputs(begin, count, batch);
      return batch;
    }
    if (!make_images(begin, count, generation, batch)) return std::nullopt;
    if (options.augment.mixup > 0) mix(batch);
    return batch;
  }

  /// Returns whether epochs continue where the previous one ended.
  bool goes_on() const { return options.shuffle && dataset->endless(); }

  /// Returns the index of the example at a position of an epoch.
  int64_t index_at(const Order& order, int64_t epoch, int64_t place) const {
    if (order) return (*order)[static_cast<size_t>(place)];
    return goes_on() ? epoch * dataset->size() + place : place;
  }

  Order order_of(int64_t epoch) {
    return options.shuffle && !dataset->endless() ? orders_.at(epoch) : nullptr;
  }

  /// Makes the images of a batch; returns false if a seek or the destructor interferes.
  bool make_images(int64_t begin, int64_t count, uint64_t generation, Batch& batch) {
    const DatasetInfo& info = dataset->info();
    const auto targets = static_cast<int64_t>(info.targets.size());
    batch.images = at::empty({count, info.channels, info.height, info.width}, at::kFloat);
    if (targets > 0) {
      batch.targets = at::empty({count, targets}, at::kFloat);
    } else {
      batch.labels = at::empty({count}, at::kLong);
    }
    auto* pixels = batch.images.mutable_data_ptr<float>();
    const Order order = order_of(batch.epoch);
    ImageReader maker(*dataset, options.augment, transform_, damaged_);
    for (int64_t i = 0; i < count; ++i) {
      if (generation_.load(std::memory_order_relaxed) != generation) return false;
      const CounterRng rng = augment_rng(options.seed, batch.epoch, begin + i);
      const int64_t index = maker.make(index_at(order, batch.epoch, begin + i), rng,
                                       pixels + i * dataset->image_size());
      if (targets > 0) {
        dataset->targets(index, batch.targets.mutable_data_ptr<float>() + i * targets);
      } else {
        batch.labels.mutable_data_ptr<int64_t>()[i] = dataset->label(index);
      }
    }
    return true;
  }

  /// Fills a batch of the whole dataset with its own tensors, in their order.
  void take_inputs(int64_t begin, int64_t count, Batch& batch) {
    const Order order = order_of(batch.epoch);
    DatasetInputs taken = inputs_;
    if (dataset->endless()) {
      taken = dataset->generate(index_at(order, batch.epoch, begin), count);
    } else if (count < dataset->size()) {
      const at::Tensor rows = order ? at::empty({count}, at::kLong) : at::Tensor();
      if (order) std::copy_n(order->begin() + begin, count, rows.mutable_data_ptr<int64_t>());
      for (at::Tensor* tensor : {&taken.values_NCHW, &taken.labels_N, &taken.targets_NK}) {
        if (!tensor->defined()) continue;
        *tensor = order ? tensor->index_select(0, rows) : tensor->narrow(0, begin, count);
      }
    }
    batch.images = taken.values_NCHW;
    batch.labels = taken.labels_N;
    batch.targets = taken.targets_NK;
  }

  void mix(Batch& batch) const {
    constexpr uint64_t kPurpose = stream_id("loader.mixup");
    CounterRng rng(options.seed, mix64(kPurpose + static_cast<uint64_t>(batch.epoch)),
                   static_cast<uint64_t>(batch.position));
    const double weight = mixup_weight(options.augment.mixup, rng);
    const auto classes = static_cast<int64_t>(dataset->info().classes.size());
    mix_with_next(batch.images, weight);
    batch.soft_labels = mixed_labels(batch.labels, classes, weight);
  }

  DatasetInputs inputs_;
  ImageTransform transform_;
  EpochOrders orders_;
  DamagedImages damaged_;

  std::mutex mutex_;  // Guards the members below; only the user's thread writes next_ and end_.
  std::condition_variable work_, arrived_;
  std::atomic<uint64_t> generation_ = 0;  // Changes whenever claimed work becomes obsolete.
  int64_t next_ = 0, claim_ = 0, end_ = 0;
  bool stopping_ = false;
  std::map<int64_t, Result> ready_;
  std::vector<std::thread> threads_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options) {
  check_options(*dataset, options);
  state_ = std::make_unique<State>(std::move(dataset), options);
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

int64_t Loader::batches_per_epoch() const {
  return state_->batches;
}
const Dataset& Loader::dataset() const {
  return *state_->dataset;
}
const LoaderOptions& Loader::options() const {
  return state_->options;
}
void Loader::seek(int64_t epoch, int64_t batch) {
  state_->seek(epoch, batch);
}
bool Loader::done() const {
  return state_->done();
}
Batch Loader::next() {
  return state_->next();
}

}  // namespace moesaic
