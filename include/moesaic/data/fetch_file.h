// SPDX-License-Identifier: Apache-2.0
// Downloads of single files: resumed, tried again, compared, put in place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/retry.h"

namespace moesaic {

/// A file to download.
struct FetchRequest {
  /// An address of http, https or file; or `hf://[datasets/]OWNER/NAME[@REVISION]/PATH`, a file of
  /// Hugging Face (of $HF_ENDPOINT, where that is set) at a revision, by default main.
  std::string url = {};
  fs::path path = {};       ///< Where it is to be; its folder is made.
  int64_t size = 0;         ///< Size in bytes; 0: unknown.
  uint64_t max_bytes = 0;   ///< Limit of a file of unknown size; 0: 2^40.
  std::string sha256 = {};  ///< Lower-case hex digits; empty: the server's hash is compared.
  std::string md5 = {};     ///< As sha256; compared where that is empty.
  std::string label = {};   ///< Label of the progress bar; empty: none.
  /// Environment variable whose value is sent to the host of `url` alone, as bearer token; empty:
  /// HF_TOKEN for hf://, none for others.
  std::string token_env = {};
  /// Compares further: returns what is wrong with the file at a path in one line, or "".
  std::function<std::string(const fs::path&)> problem_of = {};
  SleepFunction pause = sleep_for;  ///< Waits between two tries; empty: there is one try.
};

/// Downloads a file to its place, unless what is there is right already. The bytes arrive at a
/// hidden name beside it, where a later call resumes. Answers 429 and 5xx and broken connections
/// are tried again after 1, 2, 4, 8 and 16 seconds, or after what Retry-After says. Size and hash
/// (of the request; else of Hugging Face or Google Cloud Storage, where they send one) are compared
/// before the file is renamed; a wrong one that is there is set aside. Throws Error: usage for an
/// address that cannot be or holds a password or a token, else failure, with the address.
void fetch_file(const FetchRequest& request);

/// Returns the https address that one of hf:// stands for; others as they are. Throws Error (usage)
/// for an hf:// address of another form.
std::string resolved_url(const std::string& url);

/// Returns what is wrong with an address in one line that does not repeat it, or "": a password or
/// a token is in it.
std::string url_problem(const std::string& url);

}  // namespace moesaic
