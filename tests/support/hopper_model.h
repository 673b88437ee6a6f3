// SPDX-License-Identifier: Apache-2.0
// A model of what kernels/tensor_core_product.h asks of a Hopper GPU, after the PTX manual and
// independent of the code under test: barriers with phases and expected bytes, the TMA with
// its swizzle and its zeros outside of a matrix, tensor cores that read operands through
// descriptors. The roles of a block run as threads of their own.
//
// The model is as unkind as the chip may be: copies land at once, products read their operands as
// late as they may, and what is released is spoilt.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ops/kernels/tensor_core_product.h"

namespace moesaic::testing {

namespace kernels = ops::kernels;

/// Bits 4 to 6 of an address are changed by its bits 7 to 9.
inline uint32_t swizzled(uint32_t address) {
  return address ^ ((address >> 7 & 7u) << 4);
}

/// An operand as its 64 bits name it.
struct OperandModel {
  uint32_t start, leading, stride;

  explicit OperandModel(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3FFF) * 16),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3FFF) * 16),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3FFF) * 16) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) throw std::runtime_error("swizzle or base");
  }

  /// Where the number (row of A or column of B, term) lies. In atoms of 8 x 8 pieces of 16 bytes:
  /// by depth, `stride` parts every eight rows; by extent, `leading` parts every 64 rows and
  /// `stride` every eight terms.
  uint32_t address(bool by_extent, uint32_t row, uint32_t term) const {
    if (by_extent) {
      return swizzled(start + row / 64 * leading + row % 64 * 2 + term / 8 * stride +
                      term % 8 * 128);
    }
    return swizzled(start + row / 8 * stride + row % 8 * 128 + term * 2);
  }
};

/// Row and column of a thread's sum, as (thread, sum) = ((4, 8, 4), (2, 2, 16)) with the strides
/// ((128, 1, 16), (64, 8, 512)) of a matrix of 64 rows that is stored by columns.
inline std::pair<int, int> place_of_sum(int thread, int index) {
  const int at = thread % 4 * 128 + thread / 4 % 8 * 1 + thread / 32 * 16 + index % 2 * 64 +
                 index / 2 % 2 * 8 + index / 4 * 512;
  return {at % 64, at / 64};
}

class BarrierModel {
 public:
  void begin(int arrivals) { arrivals_ = pending_ = arrivals; }
  /// Whether that ends the phase.
  bool arrive(int64_t bytes_to_come) {
    if (pending_ == 0) throw std::runtime_error("more arrivals than a phase has");
    --pending_;
    bytes_ += bytes_to_come;
    const uint32_t before = phase_;
    turn();
    return phase_ != before;
  }
  void land(int64_t bytes) {
    bytes_ -= bytes;
    turn();
  }
  bool passed(uint32_t parity) const { return (phase_ & 1u) != parity; }

 private:
  void turn() {
    if (pending_ > 0 || bytes_ > 0) return;
    if (bytes_ < 0) throw std::runtime_error("more bytes than were expected");
    pending_ = arrivals_;
    ++phase_;
  }

  int arrivals_ = 0, pending_ = 0;
  int64_t bytes_ = 0;
  uint32_t phase_ = 0;
};

/// One block: its shared memory and barriers.
template <class Product>
class BlockModel {
 public:
  static constexpr int kStages = Product::Share::kStages;
  static constexpr int kStageBytes = kernels::kStageBytes<Product>;
  static constexpr uint32_t kBase = 3072;  // where shared memory begins is not 0

  BlockModel(const Product& product, const kernels::BoxSource& a, const kernels::BoxSource& b,
             int64_t index, int64_t count)
      : product_(product), sources_{a, b}, index_(index), count_(count) {
    memory_.assign(static_cast<size_t>(kStages) * kStageBytes, 0xFF);
    for (auto& barrier : filled_) barrier.begin(1);
    for (auto& barrier : free_) barrier.begin(Product::Share::kReaders * 4);
    for (const auto& source : sources_) check(source);
  }

  void run() {
    std::vector<std::thread> roles;
    roles.emplace_back([&] {
      guarded([&] {
        Loader loader{*this};
        kernels::load_tiles(product_, loader);
      });
    });
    for (int number = 0; number < kernels::kGroups; ++number) {
      roles.emplace_back([this, number] {
        guarded([&] {
          Group group(*this, number);
          kernels::multiply_tiles(product_, group);
        });
      });
    }
    for (auto& role : roles) role.join();
    if (!failure_.empty()) ADD_FAILURE() << failure_;
  }

 private:
  struct Loader {
    BlockModel& in;

    int64_t block() const { return in.index_; }
    int64_t blocks() const { return in.count_; }
    const int32_t* offsets() const { return in.product_.offsets; }
    void await_free(int stage, uint32_t parity) { in.await(in.free_[stage], parity); }
    void expect(int stage, int bytes) {
      in.change([&] { in.filled_[stage].arrive(bytes); });
    }
    template <int Which, int Rank>
    void load(int stage, int at, int32_t near, int32_t far, int32_t matrix) {
      const kernels::BoxSource& source = in.sources_[Which];
      if (source.rank != Rank) throw std::runtime_error("rank");
      in.copy_box(source, static_cast<uint32_t>(stage * kStageBytes + at) + kBase, near, far,
                  Rank == 3 ? matrix : 0);
      in.change([&] { in.filled_[stage].land(source.box[0] * source.box[1] * 2); });
    }
  };

  class Group {
   public:
    struct Own {
      float at[kernels::kGroupSums];
    };
    class Sums {
     public:
      explicit Sums(const Group&) : own_(kernels::kGroupThreads, Own{}) {}
      Own& operator[](int thread) { return own_[static_cast<size_t>(thread)]; }

     private:
      std::vector<Own> own_;
    };

    Group(BlockModel& in, int number) : in_(in), number_(number) {}

    int64_t block() const { return in_.index_; }
    int64_t blocks() const { return in_.count_; }
    const int32_t* offsets() const { return in_.product_.offsets; }
    int index() const { return number_; }
    template <class Phase>
    void each(const Phase& phase) {
      for (int thread = 0; thread < kernels::kGroupThreads; ++thread) phase(thread);
    }

    void await_filled(int stage, uint32_t parity) { in_.await(in_.filled_[stage], parity); }
    void release(int stage) {
      in_.change([&] {
        bool last = false;
        for (int warp = 0; warp < 4; ++warp) last = in_.free_[stage].arrive(0) || last;
        if (last) in_.spoil(stage);  // who reads it now without waiting reads NaN
      });
    }
    uint32_t stage_address(int stage) const {
      return kBase + static_cast<uint32_t>(stage * kStageBytes);
    }
    void clear_piece(int stage, int at) {
      std::memset(in_.memory_.data() + stage * kStageBytes + at, 0, 16);
    }
    void show_to_cores() { in_.meet(Product::Share::kReaders); }

    void begin_products(Sums&) {}
    template <bool AByRows, bool BByColumns>
    void multiply(Sums& sums, int part, uint64_t a, uint64_t b) {
      open_.push_back([this, &sums, part, a, b] {
        in_.multiply(OperandModel(a), AByRows, OperandModel(b), BByColumns, sums, part);
      });
    }
    void end_products() {
      closed_.push_back(std::move(open_));
      open_.clear();
    }
    template <int Left>
    void await_products(Sums&) {
      while (closed_.size() > Left) {
        for (const auto& product : closed_.front()) product();
        closed_.pop_front();
      }
    }
    void swap(Sums& sums, int mask, int low, int high) {
      for (int thread = 0; thread < kernels::kGroupThreads; ++thread) {
        if ((thread & mask) == 0) std::swap(sums[thread].at[high], sums[thread | mask].at[low]);
      }
    }

   private:
    BlockModel& in_;
    int number_;
    std::vector<std::function<void()>> open_;
    std::deque<std::vector<std::function<void()>>> closed_;
  };

  /// The rules of the driver's cuTensorMapEncodeTiled.
  static void check(const kernels::BoxSource& source) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(source.data) % 16, 0U);
    for (int i = 0; i < source.rank; ++i) {
      EXPECT_GT(source.size[i], 0U);
      EXPECT_LE(source.box[i], 256U);
      if (i > 0) {
        EXPECT_EQ(source.stride_bytes[i - 1] % 16, 0U);
      }
    }
    EXPECT_EQ(source.box[0] * 2, 128U) << "a line of the swizzle";
  }

  void copy_box(const kernels::BoxSource& source, uint32_t to, int32_t near, int32_t far,
                int32_t matrix) {
    if (to % 1024 != 0) throw std::runtime_error("the pattern begins at multiples of 1024");
    const auto* const from = static_cast<const char*>(source.data);
    for (uint32_t line = 0; line < source.box[1]; ++line) {
      for (uint32_t i = 0; i < source.box[0]; ++i) {
        const int64_t x = int64_t{near} + i, y = int64_t{far} + line;
        uint16_t number = 0;
        if (x >= 0 && x < static_cast<int64_t>(source.size[0]) && y >= 0 &&
            y < static_cast<int64_t>(source.size[1])) {
          std::memcpy(&number,
                      from + x * 2 + y * static_cast<int64_t>(source.stride_bytes[0]) +
                          matrix * static_cast<int64_t>(source.stride_bytes[1]),
                      2);
        }
        std::memcpy(&memory_[swizzled(to + line * 128 + i * 2) - kBase], &number, 2);
      }
    }
  }

  float read(uint32_t address) const {
    kernels::BFloat16 number;
    std::memcpy(&number, &memory_.at(address - kBase), 2);
    return kernels::widen(number);
  }

  template <class Sums>
  void multiply(const OperandModel& a, bool a_by_rows, const OperandModel& b, bool b_by_columns,
                Sums& sums, int part) const {
    static thread_local std::array<std::array<float, 16>, 64> left;
    static thread_local std::array<std::array<float, 16>, 128> right;
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t i = 0; i < 64; ++i) left[i][k] = read(a.address(a_by_rows, i, k));
      for (uint32_t j = 0; j < 128; ++j) right[j][k] = read(b.address(b_by_columns, j, k));
    }
    for (int thread = 0; thread < kernels::kGroupThreads; ++thread) {
      float* const own = sums[thread].at + part * 64;
      for (int index = 0; index < 64; ++index) {
        const auto [row, column] = place_of_sum(thread, index);
        const auto& x = left[static_cast<size_t>(row)];
        const auto& y = right[static_cast<size_t>(column)];
        for (size_t k = 0; k < 16; ++k) own[index] += x[k] * y[k];
      }
    }
  }

  void spoil(int stage) {
    std::memset(memory_.data() + stage * kStageBytes, 0xFF, static_cast<size_t>(kStageBytes));
  }

  /// bar.sync: all readers of a stage, one of them per group here.
  void meet(int readers) {
    if (readers == 1) return;
    std::unique_lock lock(mutex_);
    const int round = rounds_;
    if (++met_ == readers) {
      met_ = 0;
      ++rounds_;
      changed_.notify_all();
      return;
    }
    wait(lock, [&] { return rounds_ != round; });
  }

  void await(const BarrierModel& barrier, uint32_t parity) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return barrier.passed(parity); });
  }
  template <class Change>
  void change(const Change& body) {
    const std::scoped_lock lock(mutex_);
    body();
    changed_.notify_all();
  }
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    const bool came = changed_.wait_for(lock, std::chrono::seconds(120),
                                        [&] { return condition() || !failure_.empty(); });
    if (!came) throw std::runtime_error("roles wait for each other");
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex_);
      if (failure_.empty()) failure_ = error.what();
      changed_.notify_all();
    }
  }

  const Product& product_;
  const kernels::BoxSource sources_[2];
  int64_t index_, count_;
  std::vector<uint8_t> memory_;
  std::array<BarrierModel, kStages> filled_, free_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  int met_ = 0, rounds_ = 0;
};

/// Runs a product as `blocks` blocks that stay.
template <class Product>
void run_on_model(const Product& product, const kernels::BFloat16* a, const kernels::BFloat16* b,
                  int64_t blocks) {
  for (int64_t index = 0; index < std::min(blocks, product.tiles()); ++index) {
    BlockModel<Product>(product, product.source_a(a), product.source_b(b), index,
                        std::min(blocks, product.tiles()))
        .run();
  }
}

}  // namespace moesaic::testing
