// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <thread>

#include "loader_parts.h"
#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxThreads = 1024;

void check_options(const Dataset& dataset, const LoaderOptions& options) {
  if (options.batch_size < 1) {
    fail_usage("loader: batch_size must be at least 1, not {}", options.batch_size);
  }
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    fail_usage("loader: threads must be 0 to {}, not {}", kMaxThreads, options.num_threads);
  }
  if (options.prefetch < 1) {
    fail_usage("loader: prefetch must be at least 1, not {}", options.prefetch);
  }
  if (dataset.size() == 0) fail_usage("loader: dataset '{}' has no images", dataset.info().name);
  if (!dataset.has_images() && to_json(options.augment) != to_json(AugmentConfig())) {
    fail_usage(
        "loader: 'augment' needs images, but the inputs of '{}' are not images; leave 'augment' "
        "out",
        dataset.info().name);
  }
  if (options.augment.mixup > 0 && dataset.info().classes.empty()) {
    fail_usage(
        "loader: 'mixup' needs classes, but the targets of '{}' are not classes; leave 'mixup' out",
        dataset.info().name);
  }
  if (options.drop_last && dataset.size() < options.batch_size) {
    fail_usage("loader: drop_last leaves no batch: '{}' has {}, batch_size is {}",
               dataset.info().name, count_text(dataset.size(), "image"), options.batch_size);
  }
}

/// Returns the number of pieces in which threads make a batch of `count` examples: a thread each,
/// so that the first batch comes early and few are under way. Inputs that are no images are made
/// at once.
int64_t pieces_of(const LoaderOptions& options, bool has_images, int64_t count) {
  return has_images ? std::clamp<int64_t>(options.num_threads, 1, std::max<int64_t>(count, 1)) : 1;
}

}  // namespace

int64_t batches_ahead(const LoaderOptions& options, bool has_images) {
  const int64_t pieces = pieces_of(options, has_images, options.batch_size);
  return std::min(options.prefetch, 1 + (options.num_threads + pieces - 1) / pieces);
}

Batch Batch::to(at::Device device) const {
  Batch moved = *this;
  for (at::Tensor* tensor : {&moved.inputs, &moved.labels, &moved.soft_labels, &moved.targets}) {
    if (tensor->defined()) *tensor = tensor->to(device, /*non_blocking=*/true);
  }
  return moved;
}

void apply_mixup(Batch& batch, double weight, int64_t classes) {
  batch.mixup_weight = 1.0;
  if (!batch.own_rows.defined()) {
    mix_with_next(batch.inputs, weight);
    batch.soft_labels = mixed_labels(batch.labels, classes, weight);
    return;
  }
  const auto rows = [&](const at::Tensor& of, const at::Tensor& index) {
    return of.index_select(0, index.to(of.device()));
  };
  const at::Tensor next = rows(batch.inputs, batch.next_rows);
  batch.inputs = rows(batch.inputs, batch.own_rows).mul_(weight).add_(next, 1.0 - weight);
  const at::Tensor next_labels = rows(batch.labels, batch.next_rows);
  batch.labels = rows(batch.labels, batch.own_rows);
  batch.soft_labels = mixed_labels(batch.labels, next_labels, classes, weight);
}

/// State of a Loader. Batches have numbers epoch * batches_per_epoch + position.
class Loader::State {
 public:
  State(std::shared_ptr<const Dataset> data, LoaderOptions loader_options)
      : dataset(std::move(data)),
        options(loader_options),
        damaged(*dataset, options.is_shared),
        inputs_(dataset->inputs()),
        transform_(dataset->info(), options.augment),
        orders_(dataset->size(), options.seed, dataset->blocks(), options.batch_size),
        ahead_limit_(batches_ahead(options, dataset->has_images())) {
    choose_places();
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

  void seek(int64_t epoch, int64_t batch) {
    if (epoch < 0 || epoch >= std::numeric_limits<int64_t>::max() / dataset->size() - 1) {
      fail_usage("loader: epoch {} does not exist", epoch);
    }
    if (batch < 0 || batch > batches) {
      fail_usage("loader: batch {} does not exist: an epoch has {}", batch, batches);
    }
    {
      const std::lock_guard lock(mutex_);
      next_ = claim_ = epoch * batches + batch;
      end_ = options.shuffle ? std::numeric_limits<int64_t>::max() : (epoch + 1) * batches;
      ahead_.clear();
      open_.reset();
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
    if (options.num_threads > 0) return take();
    Assembly whole(*this, next_);
    make_piece(whole, 0, generation_);
    if (options.augment.mixup > 0) mix(whole.batch);
    ++next_;
    return std::move(whole.batch);
  }

  bool ready() {
    const std::lock_guard lock(mutex_);
    const auto found = ahead_.find(next_);
    return found != ahead_.end() && found->second->ready && !found->second->error;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  DamagedImages damaged;
  int64_t batches = 0, images = 0;

 private:
  /// With mixup, images are made too that those of the places are mixed with.
  void choose_places() {
    selected_indices_ = options.batch_indices;
    if (options.batch_indices.empty() || options.augment.mixup <= 0) return;
    std::map<int64_t, int64_t> row;
    for (const int64_t place : options.batch_indices)
      row[place] = row[(place + 1) % options.batch_size] = 0;
    selected_indices_.clear();
    for (auto& [place, index] : row) {
      index = static_cast<int64_t>(selected_indices_.size());
      selected_indices_.push_back(place);
    }
    std::vector<int64_t> own, next;
    for (const int64_t place : options.batch_indices) {
      own.push_back(row.at(place));
      next.push_back(row.at((place + 1) % options.batch_size));
    }
    own_rows_ = at::tensor(own, at::kLong);
    next_rows_ = at::tensor(next, at::kLong);
  }

  /// Returns whether of a batch of `count` examples only some are made.
  bool takes_places(int64_t count) const {
    return !selected_indices_.empty() && count == options.batch_size;
  }

  /// A batch of which threads make pieces: ranges of its examples.
  struct Assembly {
    Assembly(const State& state, int64_t number) {
      batch.epoch = number / state.batches;
      batch.position = number % state.batches;
      first = batch.position * state.options.batch_size;
      count = whole_count = std::min(state.options.batch_size, state.images - first);
      if (state.takes_places(count)) {
        count = static_cast<int64_t>(state.selected_indices_.size());
        batch.own_rows = state.own_rows_;
        batch.next_rows = state.next_rows_;
      }
      left = pieces = pieces_of(state.options, state.dataset->has_images(), count);
    }

    bool whole() const { return count == whole_count; }
    /// Returns the place in the batch of the first example of a piece.
    int64_t begin(int64_t piece) const { return piece * count / pieces; }

    Batch batch;
    int64_t first;               ///< Place of the whole batch in the epoch.
    int64_t whole_count, count;  ///< Examples of the whole batch, and those that are made.
    int64_t pieces, claimed = 0;
    std::once_flag allocated;
    int64_t left;  ///< Pieces that are not made yet.
    int64_t failed = std::numeric_limits<int64_t>::max();
    std::exception_ptr error;  ///< Of piece `failed`, the first that did.
    bool ready = false;
  };

  /// Waits for the next batch and returns it. A failed one stays the next.
  Batch take() {
    while (static_cast<int64_t>(threads_.size()) < options.num_threads) {
      threads_.emplace_back([this] { work(); });
    }
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return ahead_.contains(next_) && ahead_.at(next_)->ready; });
    const auto found = ahead_.find(next_);
    if (found->second->error) std::rethrow_exception(found->second->error);
    Batch batch = std::move(found->second->batch);
    ahead_.erase(found);
    ++next_;
    lock.unlock();
    work_.notify_all();
    return batch;
  }

  /// Runs a worker thread, which claims pieces in order, at most `ahead_limit_` batches ahead.
  void work() {
    omp_set_num_threads(1);  // Other workers already use the remaining cores.
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] {
        return stopping_ || open_ || (claim_ < end_ && claim_ - next_ < ahead_limit_);
      });
      if (stopping_) return;
      if (!open_) {
        open_ = std::make_shared<Assembly>(*this, claim_);
        ahead_[claim_++] = open_;
      }
      const std::shared_ptr<Assembly> assembly = open_;
      const int64_t piece = assembly->claimed++;
      if (assembly->claimed == assembly->pieces) open_.reset();
      const uint64_t generation = generation_;
      lock.unlock();
      std::exception_ptr error = error_of([&] { make_piece(*assembly, piece, generation); });
      lock.lock();
      if (error && piece < assembly->failed) {
        assembly->failed = piece;
        assembly->error = error;
      }
      if (--assembly->left > 0 || generation != generation_) continue;  // Or a seek was in between.
      if (options.augment.mixup > 0 && !assembly->error) {
        lock.unlock();
        error = error_of([&] { mix(assembly->batch); });
        lock.lock();
        assembly->error = error;
      }
      assembly->ready = true;
      arrived_.notify_one();
    }
  }

  static std::exception_ptr error_of(const auto& action) try {
    action();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }

  /// Makes a piece of a batch, or part of it if a seek or the destructor interferes.
  void make_piece(Assembly& assembly, int64_t piece, uint64_t generation) {
    if (!dataset->has_images()) return take_inputs(assembly);
    std::call_once(assembly.allocated, [&] { allocate(assembly.count, assembly.batch); });
    options.keeps_bytes ? make_images<uint8_t>(assembly, piece, generation)
                        : make_images<float>(assembly, piece, generation);
  }

  /// Returns the index of the example at a position of an epoch.
  int64_t index_at(const Order& order, int64_t epoch, int64_t place) const {
    if (order) return (*order)[static_cast<size_t>(place)];
    // Epochs of an endless dataset continue where the previous one ended.
    return options.shuffle && dataset->is_endless() ? epoch * dataset->size() + place : place;
  }

  Order order_of(int64_t epoch) {
    return options.shuffle && !dataset->is_endless() ? orders_.at(epoch) : nullptr;
  }

  at::Tensor empty(at::IntArrayRef shape, at::ScalarType type) const {
    return at::empty(shape, at::device(at::kCPU).dtype(type).pinned_memory(options.pin_memory));
  }

  void allocate(int64_t count, Batch& batch) const {
    const DatasetInfo& info = dataset->info();
    batch.inputs = empty({count, info.channels, info.height, info.width},
                         options.keeps_bytes ? at::kByte : at::kFloat);
    if (info.targets.empty()) {
      batch.labels = empty({count}, at::kLong);
    } else {
      batch.targets = empty({count, static_cast<int64_t>(info.targets.size())}, at::kFloat);
    }
  }

  /// Reads an image, or the part of it that a crop draws. Returns what is wrong with it, or
  /// nothing.
  std::optional<std::string> try_read(int64_t index, CounterRng& rng, uint8_t* bytes) {
    if (auto problem = damaged.find(index)) return problem;
    try {
      if (options.augment.crop) {
        const auto choose = [&](int64_t h, int64_t w) {
          return random_crop(*options.augment.crop, h, w, rng);
        };
        dataset->read_crop(index, choose, bytes);
      } else {
        dataset->image(index, bytes);
      }
      return std::nullopt;
    } catch (const ImageError& error) {
      return damaged.add(index, error);
    }
  }

  template <class Value>
  void make_images(Assembly& assembly, int64_t piece, uint64_t generation) {
    Batch& batch = assembly.batch;
    const auto targets = static_cast<int64_t>(dataset->info().targets.size());
    auto* pixels = batch.inputs.mutable_data_ptr<Value>();
    const Order order = order_of(batch.epoch);
    std::vector<uint8_t> bytes(static_cast<size_t>(dataset->image_size()));
    std::map<int64_t, std::string> replaced;
    for (int64_t i = assembly.begin(piece); i < assembly.begin(piece + 1); ++i) {
      if (generation_.load(std::memory_order_relaxed) != generation) return;
      const int64_t place =
          assembly.first + (assembly.whole() ? i : selected_indices_[static_cast<size_t>(i)]);
      CounterRng rng = augment_rng(options.seed, batch.epoch, place);
      int64_t index = index_at(order, batch.epoch, place);
      while (const auto problem = try_read(index, rng, bytes.data())) {
        replaced[index] = *problem;
        index = dataset->is_endless() ? index + 1 : (index + 1) % dataset->size();
        rng = augment_rng(options.seed, batch.epoch, place);  // As if it were the first.
      }
      transform_(bytes.data(), rng, pixels + i * dataset->image_size());
      if (targets > 0) {
        dataset->targets(index, batch.targets.mutable_data_ptr<float>() + i * targets);
      } else {
        batch.labels.mutable_data_ptr<int64_t>()[i] = dataset->label(index);
      }
    }
    if (replaced.empty()) return;
    const std::lock_guard lock(mutex_);
    batch.replaced.insert(replaced.begin(), replaced.end());
  }

  /// Fills a batch of the whole dataset with its own tensors, in their order.
  void take_inputs(Assembly& assembly) {
    Batch& batch = assembly.batch;
    const int64_t begin = assembly.first, count = assembly.whole_count;
    const Order order = order_of(batch.epoch);
    const bool part = !dataset->is_endless() && count < dataset->size();
    DatasetInputs taken = dataset->is_endless()
                              ? dataset->generate(index_at(order, batch.epoch, begin), count)
                              : inputs_;
    taken.groups_N = at::Tensor();
    const auto rows_of = [](const int64_t* rows, int64_t number) {
      return at::tensor(at::IntArrayRef(rows, static_cast<size_t>(number)), at::kLong);
    };
    at::Tensor rows, made;
    if (part && order) rows = rows_of(order->data() + begin, count);
    if (!assembly.whole()) made = rows_of(selected_indices_.data(), std::ssize(selected_indices_));
    for_each_tensor(taken, [&](at::Tensor& tensor) {
      if (part) tensor = order ? tensor.index_select(0, rows) : tensor.narrow(0, begin, count);
      if (made.defined()) tensor = tensor.index_select(0, made);
      const bool is_new = part || made.defined() || dataset->is_endless();
      if (options.pin_memory && is_new) tensor = tensor.pin_memory();
    });
    batch.inputs = taken.values_NCHW;
    batch.labels = taken.labels_N;
    batch.targets = taken.targets_NK;
  }

  void mix(Batch& batch) const {
    constexpr uint64_t kPurpose = stream_id("loader.mixup");
    CounterRng rng(options.seed, mix64(kPurpose + static_cast<uint64_t>(batch.epoch)),
                   static_cast<uint64_t>(batch.position));
    const double weight = mixup_weight(options.augment.mixup, rng);
    if (options.keeps_bytes) {
      batch.mixup_weight = weight;
      return;
    }
    apply_mixup(batch, weight, static_cast<int64_t>(dataset->info().classes.size()));
  }

  DatasetInputs inputs_;
  ImageTransform transform_;
  std::vector<int64_t> selected_indices_;  ///< Places that are made; empty: all.
  at::Tensor own_rows_, next_rows_;        ///< See Batch.
  EpochOrders orders_;
  int64_t ahead_limit_;

  std::mutex mutex_;  // Guards the members below; only the user's thread writes next_ and end_.
  std::condition_variable work_, arrived_;
  std::atomic<uint64_t> generation_ = 0;  // Changes whenever claimed work becomes obsolete.
  int64_t next_ = 0, claim_ = 0, end_ = 0;
  bool stopping_ = false;
  std::map<int64_t, std::shared_ptr<Assembly>> ahead_;  // Begun and not taken, by number.
  std::shared_ptr<Assembly> open_;                      // The one that has pieces to claim.
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
void Loader::count_damaged(int64_t index, const std::string& what, bool warns) {
  state_->damaged.count(index, what, warns);
}
bool Loader::is_done() const {
  return state_->done();
}
bool Loader::is_ready() const {
  return state_->ready();
}
Batch Loader::next() {
  return state_->next();
}

}  // namespace moesaic
