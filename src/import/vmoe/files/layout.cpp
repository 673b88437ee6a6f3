// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"

namespace moesaic::vmoe_checkpoint {
namespace {

constexpr std::pair<std::string_view, std::size_t> kNumpyDtypes[] = {
    {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}, {"bool", 1},
    {"int8", 1},    {"int16", 2},    {"int32", 4},   {"int64", 8},   {"uint8", 1},
    {"uint16", 2},  {"uint32", 4},   {"uint64", 8}};

constexpr auto kBoxBefore = [](Box a, Box b) { return std::ranges::lexicographical_compare(a, b); };

// Returns whether each element is in one chunk, for chunks of as many elements in all as the array
// has. Their bounds divide the array into cells, of which there are as many as chunks if these form
// a grid, and never more than elements.
bool cover(const Shape& shape, const Layout& layout) {
  Shape cells;
  std::vector<Shape> bounds(shape.size());
  for (std::size_t a = 0; a < shape.size(); ++a) {
    for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
      const Box axis = layout.box(chunk).subspan(2 * a, 2);
      bounds[a].insert(bounds[a].end(), axis.begin(), axis.end());
    }
    std::ranges::sort(bounds[a]);
    bounds[a].erase(std::unique(bounds[a].begin(), bounds[a].end()), bounds[a].end());
    cells.push_back(static_cast<int64_t>(bounds[a].size()) - 1);
  }
  std::vector<bool> covered(find_byte_count(cells, 1).value());
  std::vector<int64_t> box(2 * shape.size());
  for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
    for (std::size_t i = 0; i < box.size(); ++i) {
      const Shape& known = bounds[i / 2];
      box[i] = std::ranges::lower_bound(known, layout.box(chunk)[i]) - known.begin();
    }
    Runs runs(cells, box, 1);
    while (runs.left() > 0) {
      const Runs::Run run = runs.next(runs.left());
      const auto begin = covered.begin() + static_cast<int64_t>(run.first);
      const auto end = begin + static_cast<int64_t>(run.count);
      if (std::find(begin, end, true) != end) return false;
      std::fill(begin, end, true);
    }
  }
  return true;
}

int64_t smallest_prime_factor(int64_t n) {
  for (int64_t p = 2; p <= n / p; ++p) {
    if (n % p == 0) return p;
  }
  return n;
}

}  // namespace

void Layout::add(Box box, uint32_t shard) {
  bounds.insert(bounds.end(), box.begin(), box.end());
  shards.push_back(shard);
  offsets.push_back(kNowhere);
}

void Layout::sort() {
  std::vector<std::size_t> order(size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, kBoxBefore, [this](std::size_t chunk) { return box(chunk); });
  Layout sorted{.rank = rank};
  for (const std::size_t chunk : order) sorted.add(box(chunk), shards[chunk]);
  *this = std::move(sorted);
}

std::optional<std::size_t> Layout::find(Box wanted) const {
  const auto box_of = [this](const uint32_t& shard) {
    return box(static_cast<std::size_t>(&shard - shards.data()));
  };
  const auto first = std::ranges::lower_bound(shards, wanted, kBoxBefore, box_of);
  if (first == shards.end() || !std::ranges::equal(box_of(*first), wanted)) return std::nullopt;
  return static_cast<std::size_t>(first - shards.begin());
}

std::optional<std::size_t> find_dtype_size(std::string_view dtype) {
  for (const auto& [name, size] : kNumpyDtypes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

std::size_t dtype_size(std::string_view dtype) {
  if (const auto size = find_dtype_size(dtype)) return *size;
  std::vector<std::string_view> known;
  for (const auto& [name, size] : kNumpyDtypes) known.push_back(name);
  fail("unknown dtype {}; choose one of {}", printable(dtype), fmt::join(known, ", "));
}

std::optional<uint64_t> find_byte_count(const Shape& shape, std::size_t element_size) {
  // An axis of size 0 makes the array empty, however long the other axes are.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  const auto bytes = checked_product(element_size, shape);
  return bytes && *bytes <= INT64_MAX ? bytes : std::nullopt;
}

uint64_t byte_count(const Entry& entry) {
  if (const auto bytes = find_byte_count(entry.shape, dtype_size(entry.dtype))) return *bytes;
  fail("array {}: {} of shape {} needs more than 2^63 bytes", printable(entry.name), entry.dtype,
       shape_text(entry.shape));
}

uint64_t volume(Box box) {
  uint64_t elements = 1;
  for (std::size_t a = 0; a < box.size(); a += 2) {
    elements *= static_cast<uint64_t>(box[a + 1] - box[a]);
  }
  return elements;
}

std::string tiling_problem(const Shape& shape, const Layout& layout) {
  const uint64_t elements = find_byte_count(shape, 1).value_or(UINT64_MAX);
  if (elements == 0) return layout.size() > 1 ? "has no elements, and more than one chunk" : "";
  std::optional<uint64_t> held = 0;
  for (std::size_t i = 0; i < layout.size() && held; ++i) {
    const uint64_t more = volume(layout.box(i));
    if (more == 0) return fmt::format("chunk {} is empty", box_text(layout.box(i)));
    held = checked_add(*held, more);
  }
  if (held && *held < elements) {
    return fmt::format("a hole: its chunks hold {} of {} elements", *held, elements);
  }
  if (!held || *held > elements) return "chunks overlap";
  return cover(shape, layout) ? "" : "chunks overlap and leave a hole";
}

Layout cut(const Shape& shape, std::size_t element_size, uint64_t max_chunk_bytes) {
  Shape extent = shape;
  uint64_t bytes = find_byte_count(shape, element_size).value_or(0);
  while (bytes > max_chunk_bytes) {
    const auto axis = std::ranges::min_element(
        extent, [](int64_t a, int64_t b) { return a > 1 && (b <= 1 || a < b); });
    if (axis == extent.end() || *axis <= 1) break;
    const int64_t parts = smallest_prime_factor(*axis);
    *axis /= parts;
    bytes /= static_cast<uint64_t>(parts);
  }
  Layout layout{.rank = shape.size()};
  std::vector<int64_t> box;
  for (const int64_t n : extent) box.insert(box.end(), {0, n});
  for (;;) {
    layout.add(box, 0);
    std::size_t a = shape.size();
    while (a > 0 && box[2 * a - 1] == shape[a - 1]) {
      --a;
      box[2 * a] = 0;
      box[2 * a + 1] = extent[a];
    }
    if (a == 0) return layout;
    box[2 * a - 2] += extent[a - 1];
    box[2 * a - 1] += extent[a - 1];
  }
}

std::string box_text(Box box) {
  std::vector<std::string> axes;
  for (std::size_t a = 0; a < box.size(); a += 2) {
    axes.push_back(fmt::format("{}:{}", box[a], box[a + 1]));
  }
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

Runs::Runs(const Shape& shape, Box box, std::size_t element_size)
    : run_bytes_(element_size), left_(volume(box) * element_size) {
  uint64_t stride = element_size;
  bool contiguous = true;
  for (std::size_t a = shape.size(); left_ > 0 && a-- > 0;) {
    const int64_t start = box[2 * a], extent = box[2 * a + 1] - start;
    begin_ += static_cast<uint64_t>(start) * stride;
    if (contiguous) {
      run_bytes_ *= static_cast<uint64_t>(extent);
      contiguous = extent == shape[a];
    } else {
      axes_.push_back({.extent = extent, .index = 0, .stride = stride});
    }
    stride *= static_cast<uint64_t>(shape[a]);
  }
}

Runs::Run Runs::next(uint64_t limit) {
  const Run run{.first = begin_ + within_, .count = std::min({limit, run_bytes_ - within_, left_})};
  within_ += run.count;
  left_ -= run.count;
  if (within_ < run_bytes_ || left_ == 0) return run;
  within_ = 0;
  for (Axis& axis : axes_) {
    begin_ += axis.stride;
    if (++axis.index < axis.extent) break;
    begin_ -= axis.stride * static_cast<uint64_t>(axis.extent);
    axis.index = 0;
  }
  return run;
}

bool comes_before(std::string_view a, std::string_view b) {
  // Names are compared part by part: '/' sorts before any byte of a part.
  const auto weight = [](char c) { return c == '/' ? -1 : int{static_cast<unsigned char>(c)}; };
  return std::ranges::lexicographical_compare(a, b, {}, weight, weight);
}

fs::path index_path(const fs::path& prefix) {
  return prefix.string() + ".index";
}

fs::path shard_path(const fs::path& prefix, int64_t shard, int64_t count) {
  return fmt::format("{}.data-{:05}-of-{:05}", prefix.string(), shard, count);
}

}  // namespace moesaic::vmoe_checkpoint
