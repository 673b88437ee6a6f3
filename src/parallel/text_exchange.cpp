// SPDX-License-Identifier: Apache-2.0
#include "text_exchange.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace moesaic {
namespace {

using Bytes = std::vector<uint8_t>;

std::string key_of(int64_t exchange) {
  return "exchange/" + std::to_string(exchange) + "/";
}

/// Returns whether the keys are there within `pause`. Throws what the store does where it is gone.
bool come(c10d::Store& store, const std::vector<std::string>& keys,
          std::chrono::milliseconds pause) {
  try {
    store.wait(keys, pause);
    return true;
  } catch (const c10::DistStoreError&) {
    return false;  // Not in time.
  }
}

// No value of a store may be empty, and a text may hold any bytes, such as those of a path.
Bytes packed(const std::vector<std::string>& texts) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& text : texts) {
    list.push_back(nlohmann::json::binary(Bytes(text.begin(), text.end())));
  }
  return nlohmann::json::to_msgpack(list);
}

std::vector<std::string> unpacked(const Bytes& bytes) {
  std::vector<std::string> texts;
  for (const nlohmann::json& item : nlohmann::json::from_msgpack(bytes)) {
    const Bytes& text = item.get_binary();
    texts.emplace_back(text.begin(), text.end());
  }
  return texts;
}

}  // namespace

TextExchange::TextExchange(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

std::vector<std::string> TextExchange::operator()(const std::string& text,
                                                  std::chrono::milliseconds pause,
                                                  const Missing& missing) {
  const std::string key = key_of(exchanges_++);
  if (rank_ == 0) return gather(text, key, pause, missing);
  store_->set(key + std::to_string(rank_), packed({text}));
  const std::string all = key + "all";
  while (!come(*store_, {all}, pause)) missing({0});
  return unpacked(store_->get(all));
}

std::vector<std::string> TextExchange::gather(const std::string& text, const std::string& key,
                                              std::chrono::milliseconds pause,
                                              const Missing& missing) {
  std::vector<std::string> keys, texts = {text};
  for (int64_t rank = 1; rank < size_; ++rank) keys.push_back(key + std::to_string(rank));
  while (!come(*store_, keys, pause)) {
    std::vector<int64_t> ranks;
    for (int64_t rank = 1; rank < size_; ++rank) {
      if (!store_->check({keys[static_cast<size_t>(rank - 1)]})) ranks.push_back(rank);
    }
    if (!ranks.empty()) missing(ranks);
  }
  for (const Bytes& bytes : store_->multiGet(keys)) texts.push_back(unpacked(bytes).at(0));
  store_->set(key + "all", packed(texts));
  for (const std::string& own : keys) store_->deleteKey(own);
  // All of them came to this exchange, so they have read that before.
  if (exchanges_ > 1) store_->deleteKey(key_of(exchanges_ - 2) + "all");
  return texts;
}

}  // namespace moesaic
