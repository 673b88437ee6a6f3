// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/formats/vmoe_checkpoint.h"
#include "vmoe_checkpoint_index.h"
#include "vmoe_checkpoint_layout.h"

namespace moesaic::vmoe_checkpoint {
namespace {

using message_pack::Input;

// Number of bytes copied before their pages are released.
constexpr std::size_t kCopyBytes = std::size_t{16} << 20;

struct Shard {
  std::string file;
  MappedFile mapping;
};

std::optional<std::size_t> parse_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool canonical = text == "0" || (!text.empty() && text[0] != '0');
  if (error != std::errc() || end != text.data() + text.size() || !canonical) return std::nullopt;
  return number;
}

// Visits the bytes of all pieces of a chunk; returns the number of elements.
template <class F>
uint64_t visit_pieces(Input& input, const Entry& entry, F&& visit) {
  const std::size_t element = dtype_size(entry.dtype);
  const uint64_t pieces = input.array("the pieces of a chunk");
  uint64_t total = 0;
  for (uint64_t i = 0; i < pieces; ++i) {
    const message_pack::Extension found = input.extension("a piece");
    if (found.type != kArrayType) {
      input.refuse(found.position, "unknown extension type {}, a piece has {}", found.type,
                   kArrayType);
    }
    Input body = input.inside(found.body);
    body.array_of(3, "a piece");
    body.array_of(1, "the shape of a piece");
    const uint64_t count = body.natural("the length of a piece");
    const uint64_t dtype_start = body.position();
    const std::string_view dtype = body.string("the dtype of a piece");
    if (dtype != entry.dtype) {
      body.refuse(dtype_start, "a piece is {}, the index says {}", printable(dtype), entry.dtype);
    }
    const auto bytes = body.binary("the values of a piece");
    if (checked_mul(count, element) != bytes.size()) {
      body.refuse(found.position, "a piece of {} {} has {} bytes", count, dtype, bytes.size());
    }
    body.end("a piece");
    total += count;  // Cannot overflow: at most the file's size.
    visit(bytes, body.position() - bytes.size());
  }
  return total;
}

// Finds the chunks of one shard and records their offsets.
class ShardParser {
 public:
  ShardParser(const Shard& shard, uint32_t number, Index& index)
      : input_(shard.mapping.bytes(), shard.file), number_(number), index_(index) {}

  void parse() {
    const uint64_t keys = input_.map("the shard");
    bool marked = false;
    for (uint64_t i = 0; i < keys; ++i) {
      const uint64_t start = input_.position();
      const std::string_view key = input_.string("a key");
      if (key == kChunksKey) {
        if (marked || !input_.boolean(key)) input_.refuse(start, "{} must be true, once", key);
        marked = true;
      } else {
        array(start, key);
      }
    }
    input_.end("the shard");
    if (!marked) input_.refuse(0, "no key {}", kChunksKey);
  }

 private:
  void array(uint64_t start, std::string_view key) {
    const auto number = parse_number(key);
    if (!number) input_.refuse(start, "key {} is no array number", printable(key));
    if (*number >= index_.entries.size()) {
      input_.refuse(start, "array number {}, the index has {} arrays", *number,
                    index_.entries.size());
    }
    const Entry& entry = index_.entries[*number];
    input_.set_array(entry.name);
    const uint64_t chunks = input_.array("the chunks");
    for (uint64_t i = 0; i < chunks; ++i) chunk(entry, index_.layouts[*number]);
    input_.set_array({});
  }

  void chunk(const Entry& entry, Layout& layout) {
    const uint64_t start = input_.position();
    input_.array_of(2, "a chunk");
    const uint64_t found = visit_pieces(input_, entry, [](auto&&...) {});
    const message_pack::Extension place = input_.extension("a chunk's place");
    if (place.type != kPlaceType) {
      input_.refuse(place.position, "unknown extension type {}, a place has {}", place.type,
                    kPlaceType);
    }
    Input body = input_.inside(place.body);
    read_box(body, entry.shape, box_);
    body.end("a chunk's place");
    const auto chunk = layout.find(box_);
    if (!chunk || layout.shards[*chunk] != number_) {
      input_.refuse(place.position, "the index has no chunk {} in this shard", box_text(box_));
    }
    if (layout.offsets[*chunk] != kNowhere) {
      input_.refuse(place.position, "chunk {} stands here twice", box_text(box_));
    }
    if (found != volume(box_)) {
      input_.refuse(start, "chunk {} has {} elements, its pieces have {}", box_text(box_),
                    volume(box_), found);
    }
    layout.offsets[*chunk] = start;
  }

  Input input_;
  uint32_t number_;
  Index& index_;
  std::vector<int64_t> box_;
};

std::vector<Shard> map_shards(const std::filesystem::path& prefix, int64_t count) {
  std::vector<Shard> shards;
  for (int64_t i = 0; i < count; ++i) {
    const std::filesystem::path path = shard_path(prefix, i, count);
    shards.push_back({path.string(), MappedFile(path)});
  }
  return shards;
}

// Returns the shard sizes for a message, which show a truncated shard.
std::string shard_sizes(const std::vector<Shard>& shards) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(shards.size(), kShown); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shards[i].mapping.bytes().size());
  }
  return text + (shards.size() > kShown ? ", ..." : "");
}

void check_not_empty(const std::vector<Shard>& shards) {
  for (const Shard& shard : shards) {
    if (shard.mapping.bytes().empty()) fail("{}: the shard is empty, 0 bytes", shard.file);
  }
}

// Checks the claimed sizes against the shards before anything is allocated for them.
void check_claims(const Index& index, const std::vector<Shard>& shards, const std::string& file) {
  uint64_t left = 0;
  for (const Shard& shard : shards) left += shard.mapping.bytes().size();
  const uint64_t all = left;
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    const Entry& entry = index.entries[i];
    const uint64_t bytes = byte_count(entry);
    if (bytes > left) {
      fail(
          "{}: array {}: {} of shape [{}] needs {} bytes; the shards have {} in all, {} of them "
          "for other arrays; a shard may be cut short, their bytes are {}",
          file, printable(entry.name), entry.dtype, fmt::join(entry.shape, ", "), bytes, all,
          all - left, shard_sizes(shards));
    }
    left -= bytes;
  }
}

void check_tiling(const Index& index, const std::string& file) {
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    const std::string problem = tiling_problem(index.entries[i].shape, index.layouts[i]);
    if (!problem.empty()) {
      fail("{}: array {}: {}", file, printable(index.entries[i].name), problem);
    }
  }
}

void check_found(const Index& index, const std::vector<Shard>& shards) {
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    const Layout& layout = index.layouts[i];
    const auto missing = std::ranges::find(layout.offsets, kNowhere);
    if (missing == layout.offsets.end()) continue;
    const auto chunk = static_cast<std::size_t>(missing - layout.offsets.begin());
    fail("{}: array {} (number {}): chunk {} is missing", shards[layout.shards[chunk]].file,
         printable(index.entries[i].name), i, box_text(layout.box(chunk)));
  }
}

}  // namespace

struct Reader::State {
  Index index;
  std::vector<Shard> shards;

  std::optional<std::size_t> number_of(std::string_view name) const {
    const auto place = std::ranges::lower_bound(index.entries, name, comes_before, &Entry::name);
    if (place == index.entries.end() || place->name != name) return std::nullopt;
    return static_cast<std::size_t>(place - index.entries.begin());
  }
  std::size_t checked_number(const Entry& entry) const;
  void read_chunk(std::size_t number, std::size_t chunk, const Visitor& visitor) const;
};

std::size_t Reader::State::checked_number(const Entry& entry) const {
  const auto number = number_of(entry.name);
  if (!number || index.entries[*number] != entry) {
    fail_usage("V-MoE checkpoint: array {} belongs to another one", printable(entry.name));
  }
  return *number;
}

void Reader::State::read_chunk(std::size_t number, std::size_t chunk,
                               const Visitor& visitor) const {
  const Entry& entry = index.entries[number];
  const Layout& layout = index.layouts[number];
  const Shard& shard = shards[layout.shards[chunk]];
  const uint64_t start = layout.offsets[chunk];
  Input input(shard.mapping.bytes().subspan(start), shard.file, start);
  input.set_array(entry.name);
  input.array_of(2, "a chunk");
  Runs runs(entry.shape, layout.box(chunk), dtype_size(entry.dtype));
  visit_pieces(input, entry, [&](std::span<const std::byte> piece, uint64_t position) {
    if (piece.size() > runs.left()) input.refuse(position, "changed while it was read");
    if (entry.dtype == "bool") {
      const auto wrong = std::ranges::find_if(piece, [](std::byte b) { return b > std::byte{1}; });
      if (wrong != piece.end()) {
        input.refuse(position + static_cast<uint64_t>(wrong - piece.begin()),
                     "a bool must be 0 or 1, found {}", static_cast<int>(*wrong));
      }
    }
    for (std::size_t done = 0; done < piece.size();) {
      const auto part = piece.subspan(done, std::min(kCopyBytes, piece.size() - done));
      for (std::size_t copied = 0; copied < part.size();) {
        const Runs::Run run = runs.next(part.size() - copied);
        visitor(run.first, part.subspan(copied, run.count));
        copied += run.count;
      }
      shard.mapping.release(part);
      done += part.size();
    }
  });
}

Reader::Reader(const std::filesystem::path& prefix) {
  const std::filesystem::path path = index_path(prefix);
  auto state = std::make_unique<State>();
  {
    const MappedFile file(path);
    state->index = parse_index(file.bytes(), path.string());
  }
  state->shards = map_shards(prefix, state->index.shard_count);
  check_not_empty(state->shards);
  check_claims(state->index, state->shards, path.string());
  check_tiling(state->index, path.string());
  for (std::size_t i = 0; i < state->shards.size(); ++i) {
    const Shard& shard = state->shards[i];
    ShardParser(shard, static_cast<uint32_t>(i), state->index).parse();
    shard.mapping.release(shard.mapping.bytes());
  }
  check_found(state->index, state->shards);
  state_ = std::move(state);
}

Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

const std::vector<Entry>& Reader::entries() const noexcept {
  return state_->index.entries;
}

const Entry* Reader::find(std::string_view name) const {
  const auto number = state_->number_of(name);
  return number ? &state_->index.entries[*number] : nullptr;
}

void Reader::visit(const Entry& entry, const Visitor& visitor) const {
  const std::size_t number = state_->checked_number(entry);
  for (std::size_t chunk = 0; chunk < state_->index.layouts[number].size(); ++chunk) {
    state_->read_chunk(number, chunk, visitor);
  }
}

void Reader::read(const Entry& entry, std::span<std::byte> out) const {
  state_->checked_number(entry);
  if (out.size() != byte_count(entry)) {
    fail_usage("V-MoE checkpoint: array {} has {} bytes, not {}", printable(entry.name),
               byte_count(entry), out.size());
  }
  visit(entry, [&](uint64_t first, std::span<const std::byte> run) {
    std::memcpy(out.data() + first, run.data(), run.size());
  });
}

int64_t Reader::shard_count() const noexcept {
  return state_->index.shard_count;
}

const std::string& Reader::version() const noexcept {
  return state_->index.version;
}

}  // namespace moesaic::vmoe_checkpoint
