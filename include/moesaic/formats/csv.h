// SPDX-License-Identifier: Apache-2.0
// Comma-separated values (RFC 4180), plain or compressed by gzip, read row by row. Files are
// untrusted: a message names file, line and column, and memory follows what is there.
#pragma once

#include <string_view>

#include "moesaic/formats/gzip.h"

namespace moesaic::csv {

/// Most bytes of a field, and most fields of a row.
inline constexpr std::size_t kMaxFieldBytes = 4096, kMaxFields = 131072;

/// The rows of a file, one at a time. Fields are separated by commas, rows end at LF, CRLF or the
/// end of the file; a byte order mark and empty lines at the end are skipped. A field in quotes may
/// hold commas, line breaks and doubled quotes. Throws Error (failure) for UTF-16, an empty line
/// before a row, a row of another length than the first, a misplaced or open quote, a bare CR, and
/// what exceeds the limits.
class Reader {
 public:
  /// Opens a file.
  explicit Reader(const fs::path& path);

  /// Reads the next row; returns false at the end of the file.
  bool next();
  /// Returns the number of fields of the row.
  std::size_t size() const noexcept { return count_; }
  /// Returns a field of the row, without its quotes, valid until next().
  std::string_view text(std::size_t field) const { return fields_.at(field).text; }
  /// Returns a field that is a number in decimal notation, finite in float32, and nothing else,
  /// neither blanks nor a plus sign. Throws Error (failure) for any other one.
  float number(std::size_t field) const;
  /// Returns "file:line:column" of a field, for messages; columns count characters from 1.
  std::string where(std::size_t field) const { return at(fields_.at(field).begin); }

 private:
  struct Place {
    int64_t line = 1, column = 1;
  };
  struct Field {
    std::string text;
    Place begin;
  };

  int peek();
  int take();
  /// Reads a field and what ends it; returns whether another one of the row follows.
  bool read_field();
  void read_quoted(Field& field);
  void append(Field& field, int byte) const;
  std::string at(const Place& place) const;

  std::string name_;
  UnpackedReader file_;
  std::vector<uint8_t> piece_;
  std::size_t used_ = 0, held_ = 0;  ///< Bytes of the piece.
  Place place_;                      ///< Of the next byte.
  std::vector<Field> fields_;        ///< Kept for their memory; the row's are the first count_.
  std::size_t count_ = 0, columns_ = 0;
};

}  // namespace moesaic::csv
