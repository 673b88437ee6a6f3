// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <fnmatch.h>

#include <exception>
#include <utility>

namespace moesaic::bench {
namespace {

/// Returns the first line of the error that `work` throws, or "".
std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "unknown error" : text.substr(0, text.find('\n'));
  }
}

}  // namespace

Report::Report(std::string names, std::function<void(const NamedRow&)> take)
    : names_(std::move(names)), take_(std::move(take)) {}

void Report::operator()(const std::string& name, const std::function<Row()>& measure) const {
  known_.push_back(name);
  if (::fnmatch(names_.c_str(), name.c_str(), 0) != 0) return;
  NamedRow result{.name = name, .row = {}, .error = {}};
  result.error = error_of([&] { result.row = measure(); });
  take_(result);
}

void Report::section(const std::string& prefix, const std::function<void()>& rows) const {
  const std::string fixed = names_.substr(0, names_.find_first_of("*?["));
  if (!fixed.starts_with(prefix) && !prefix.starts_with(fixed)) {
    known_.push_back(prefix + "*");
    return;
  }
  if (const std::string error = error_of(rows); !error.empty()) take_({prefix, {}, error});
}

}  // namespace moesaic::bench
