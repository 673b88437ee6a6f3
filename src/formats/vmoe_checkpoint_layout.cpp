// SPDX-License-Identifier: Apache-2.0
#include "vmoe_checkpoint_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic::vmoe_checkpoint {
namespace {

struct NumpyDtype {
  std::string_view name;
  std::size_t size;
};
constexpr NumpyDtype kNumpyDtypes[] = {
    {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}, {"bool", 1},
    {"int8", 1},    {"int16", 2},    {"int32", 4},   {"int64", 8},   {"uint8", 1},
    {"uint16", 2},  {"uint32", 4},   {"uint64", 8}};

// Limits of the tiling check: a box has 2^axes corners, over the axes that are split.
constexpr std::size_t kMaxCutAxes = 8;
constexpr uint64_t kMaxCorners = uint64_t{1} << 22;

std::vector<std::size_t> cut_axes(const Shape& shape, const Layout& layout) {
  std::vector<std::size_t> axes;
  for (std::size_t a = 0; a < shape.size(); ++a) {
    for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
      const Box box = layout.box(chunk);
      if (box[2 * a] == 0 && box[2 * a + 1] == shape[a]) continue;
      axes.push_back(a);
      break;
    }
  }
  return axes;
}

// Flat indices of the corners where the sum over boxes of the mixed difference of their indicator
// functions has a positive and a negative term.
struct Corners {
  std::vector<uint64_t> plus, minus;
};

void add_corners(Corners& corners, Box box, std::span<const std::size_t> axes,
                 std::span<const uint64_t> strides, bool negate) {
  for (std::size_t corner = 0; corner < std::size_t{1} << axes.size(); ++corner) {
    uint64_t number = 0;
    bool minus = negate;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::size_t stop = corner >> i & 1;
      number += static_cast<uint64_t>(box[2 * axes[i] + stop]) * strides[i];
      minus ^= stop == 1;
    }
    (minus ? corners.minus : corners.plus).push_back(number);
  }
}

// Returns whether the chunks tile the array. The number of chunks that hold an element is 1
// everywhere iff the mixed differences of both functions agree; these are zero except at corners.
bool tiles(const Shape& shape, const Layout& layout, std::span<const std::size_t> axes) {
  std::vector<uint64_t> strides;
  uint64_t stride = 1;
  for (const std::size_t a : axes) {
    strides.push_back(stride);
    stride *= static_cast<uint64_t>(shape[a]) + 1;  // Cannot overflow: the array fits into files.
  }
  std::vector<int64_t> whole;
  for (const int64_t n : shape) whole.insert(whole.end(), {0, n});
  Corners corners;
  add_corners(corners, whole, axes, strides, true);
  for (std::size_t i = 0; i < layout.size(); ++i) {
    add_corners(corners, layout.box(i), axes, strides, false);
  }
  std::sort(corners.plus.begin(), corners.plus.end());
  std::sort(corners.minus.begin(), corners.minus.end());
  return corners.plus == corners.minus;
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
  const auto before = [this](std::size_t a, std::size_t b) {
    const Box left = box(a), right = box(b);
    return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end());
  };
  std::vector<std::size_t> order(size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (std::is_sorted(order.begin(), order.end(), before)) return;
  std::sort(order.begin(), order.end(), before);
  Layout sorted{.rank = rank, .bounds = {}, .shards = {}, .offsets = {}};
  for (const std::size_t i : order) sorted.add(box(i), shards[i]);
  *this = std::move(sorted);
}

std::optional<std::size_t> Layout::find(Box wanted) const {
  std::size_t low = 0, high = size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    const Box here = box(middle);
    if (std::lexicographical_compare(here.begin(), here.end(), wanted.begin(), wanted.end())) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == size() || !std::ranges::equal(box(low), wanted)) return std::nullopt;
  return low;
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
  uint64_t bytes = element_size;
  for (const int64_t n : shape) {
    const auto product = checked_mul(bytes, static_cast<uint64_t>(n));
    if (!product || *product > INT64_MAX) return std::nullopt;
    bytes = *product;
  }
  return bytes;
}

std::optional<uint64_t> element_count(const Shape& shape) {
  return find_byte_count(shape, 1);
}

uint64_t byte_count(const Entry& entry) {
  const auto bytes = find_byte_count(entry.shape, dtype_size(entry.dtype));
  if (!bytes) {
    fail("array {}: {} of shape [{}] needs more than 2^63 bytes", printable(entry.name),
         entry.dtype, fmt::join(entry.shape, ", "));
  }
  return *bytes;
}

uint64_t volume(Box box) {
  uint64_t elements = 1;
  for (std::size_t a = 0; 2 * a < box.size(); ++a) {
    const int64_t extent = box[2 * a + 1] - box[2 * a];
    if (extent == 0) return 0;
    elements *= static_cast<uint64_t>(extent);
  }
  return elements;
}

std::string tiling_problem(const Shape& shape, const Layout& layout) {
  const uint64_t elements = element_count(shape).value_or(UINT64_MAX);
  if (elements == 0) return layout.size() > 1 ? "has no elements, and more than one chunk" : "";
  std::optional<uint64_t> covered = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const uint64_t held = volume(layout.box(i));
    if (held == 0) return fmt::format("chunk {} is empty", box_text(layout.box(i)));
    covered = covered ? checked_add(*covered, held) : covered;
  }
  if (covered && *covered < elements) {
    return fmt::format("a hole: its chunks hold {} of {} elements", *covered, elements);
  }
  if (!covered || *covered > elements) return "chunks overlap";
  const std::vector<std::size_t> axes = cut_axes(shape, layout);
  if (axes.size() > kMaxCutAxes) {
    return fmt::format("cut along {} axes, at most {} are supported", axes.size(), kMaxCutAxes);
  }
  if (layout.size() > kMaxCorners >> axes.size()) {
    return fmt::format("{} chunks are more than are supported", layout.size());
  }
  return tiles(shape, layout, axes) ? "" : "chunks overlap and leave a hole";
}

Layout cut(const Shape& shape, std::size_t element_size, uint64_t max_chunk_bytes) {
  Shape extent = shape;
  uint64_t bytes = find_byte_count(shape, element_size).value_or(0);
  while (bytes > max_chunk_bytes) {
    auto axis = extent.end();
    for (auto a = extent.begin(); a != extent.end(); ++a) {
      if (*a > 1 && (axis == extent.end() || *a < *axis)) axis = a;
    }
    if (axis == extent.end()) break;
    const int64_t parts = smallest_prime_factor(*axis);
    *axis /= parts;
    bytes /= static_cast<uint64_t>(parts);
  }
  Layout layout{.rank = shape.size(), .bounds = {}, .shards = {}, .offsets = {}};
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
  for (std::size_t a = 0; 2 * a < box.size(); ++a) {
    axes.push_back(fmt::format("{}:{}", box[2 * a], box[2 * a + 1]));
  }
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

Runs::Runs(const Shape& shape, Box box, std::size_t element_size)
    : left_(volume(box) * element_size) {
  if (left_ == 0) return;
  uint64_t stride = element_size;
  bool contiguous = true;
  run_bytes_ = element_size;
  for (std::size_t a = shape.size(); a-- > 0;) {
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
  if (left_ == 0) return {};
  const uint64_t count = std::min(limit, run_bytes_ - within_);
  const Run run{.first = begin_ + within_, .count = count};
  within_ += count;
  left_ -= count;
  if (within_ == run_bytes_ && left_ > 0) advance();
  return run;
}

void Runs::advance() {
  within_ = 0;
  for (Axis& axis : axes_) {
    begin_ += axis.stride;
    if (++axis.index < axis.extent) return;
    begin_ -= axis.stride * static_cast<uint64_t>(axis.extent);
    axis.index = 0;
  }
}

}  // namespace moesaic::vmoe_checkpoint
