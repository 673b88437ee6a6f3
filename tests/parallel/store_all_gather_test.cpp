// SPDX-License-Identifier: Apache-2.0
#include "parallel/monitor.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "support/matchers.h"

namespace moesaic {
namespace {

constexpr std::chrono::hours kLong(1);

/// A store in memory that counts what is asked of it.
class CountingStore : public c10d::Store {
 public:
  int64_t requests() const { return requests_; }

  c10::intrusive_ptr<Store> clone() override { return store_->clone(); }  // Which counts nothing.
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    counted()->set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override { return counted()->get(key); }
  int64_t add(const std::string& key, int64_t value) override { return counted()->add(key, value); }
  bool deleteKey(const std::string& key) override { return counted()->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return counted()->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { counted()->wait(keys); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    counted()->wait(keys, timeout);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return counted()->multiGet(keys);
  }

 protected:
  c10d::HashStore* counted() {
    ++requests_;
    return store_.get();
  }

 private:
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int64_t> requests_ = 0;
};

/// One in which whatever is asked for is there: the other processes are never waited for.
class FullStore : public CountingStore {
 public:
  std::vector<uint8_t> get(const std::string&) override { return texts({""}).at(0); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    texts(keys);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    return texts(keys);
  }

 private:
  std::vector<std::vector<uint8_t>> texts(const std::vector<std::string>& keys) {
    counted();
    return std::vector<std::vector<uint8_t>>(keys.size(), {0x91, 0xA1, 'a'});  // A list: "a".
  }
};

void exchange_in_threads(const c10::intrusive_ptr<CountingStore>& store, int64_t size,
                         int64_t exchanges) {
  std::atomic<int64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      StoreAllGather exchange(store, rank, size);
      for (int64_t i = 0; i < exchanges; ++i) {
        const auto all = exchange(std::to_string(rank * i), kLong, [](const auto&) {});
        for (int64_t r = 0; r < size; ++r)
          wrong += all.at(static_cast<size_t>(r)) != std::to_string(r * i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(StoreAllGather, TakesFourRequestsOfEachProcess) {
  constexpr int64_t kExchanges = 3;
  for (const int64_t size : {2, 32, 512}) {
    const auto store = c10::make_intrusive<CountingStore>();
    exchange_in_threads(store, size, kExchanges);
    EXPECT_EQ(store->requests(), 4 * size * kExchanges - 1) << size << " processes";
  }
}

TEST(StoreAllGather, TakesTwentyMillionRequestsForTenThousandSavesOf512Processes) {
  constexpr int64_t kProcesses = 512, kSaves = 10'000;
  const auto requests_of = [](int64_t rank) {
    const auto store = c10::make_intrusive<FullStore>();
    StoreAllGather exchange(store, rank, kProcesses);
    for (int64_t save = 0; save < kSaves; ++save) exchange("a", kLong, [](const auto&) {});
    return store->requests();
  };
  const int64_t requests = requests_of(0) + (kProcesses - 1) * requests_of(1);
  EXPECT_EQ(requests, 4 * kProcesses * kSaves - 1);
  RecordProperty("requests", requests);
}

TEST(StoreAllGather, LeavesOneKeyBehind) {
  const auto store = c10::make_intrusive<CountingStore>();
  exchange_in_threads(store, 3, 10'000);
  EXPECT_EQ(store->getNumKeys(), 1);
}

TEST(StoreAllGather, NamesThoseThatAreMissing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread one([&] { StoreAllGather(store, 1, 4)("b", kLong, [](const auto&) {}); });
  StoreAllGather leader(store, 0, 4);
  const auto missing = [&](const std::vector<int64_t>& ranks) {
    if (ranks.size() == 3) return;  // Thread 1 has not come yet.
    EXPECT_THAT(ranks, ElementsAre(2, 3));
    throw std::runtime_error("enough");
  };
  EXPECT_THROW(leader("a", std::chrono::milliseconds(20), missing), std::runtime_error);
  store->set("exchange/0/all", std::vector<uint8_t>{0x90});  // An empty list, which ends thread 1.
  one.join();
}

TEST(StoreAllGather, TextsHoldAnyBytes) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string bytes("\0\xff\n", 3);
  std::thread one([&] {
    EXPECT_THAT(StoreAllGather(store, 1, 2)("", kLong, [](const auto&) {}), ElementsAre(bytes, ""));
  });
  EXPECT_THAT(StoreAllGather(store, 0, 2)(bytes, kLong, [](const auto&) {}),
              ElementsAre(bytes, ""));
  one.join();
}

}  // namespace
}  // namespace moesaic
