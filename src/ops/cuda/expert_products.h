// SPDX-License-Identifier: Apache-2.0
// Products of experts' rows with their weights, by the library. This header needs no GPU: tests run
// the same code on the host.
#pragma once

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <vector>

namespace moesaic::ops {

/// Returns whether the library's grouped GEMM takes rows [A, d] and weights [K, d, m] without a
/// copy, on chips that have one: see its rules on dtypes and sizes.
inline bool suits_grouped_mm(const at::Tensor& rows, const at::Tensor& w) {
  constexpr int64_t kMaxExperts = 1023, kMultiple = 8;
  return rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 && w.size(0) > 0 &&
         w.size(0) <= kMaxExperts && rows.size(1) > 0 && rows.size(1) % kMultiple == 0 &&
         w.size(2) > 0 && w.size(2) % kMultiple == 0;
}

/// Returns whether the rows' device has a grouped GEMM for them, without a host synchronisation,
/// and MOESAIC_CUDA_OFF does not name it.
#ifdef MOESAIC_WITH_CUDA
bool groups_products(const at::Tensor& rows, const at::Tensor& w);
#else
inline bool groups_products(const at::Tensor&, const at::Tensor&) {
  return false;
}
#endif

/// Multiplies the rows of each expert. Rows past the last offset are not written; nor, by a grouped
/// product, are the results of experts without rows in by_rows().
class ExpertProducts {
 public:
  /// offsets: [K + 1] int32. A grouped GEMM leaves them on the device; otherwise they are read
  /// once and every expert has a product of its own.
  ExpertProducts(const at::Tensor& offsets, bool is_grouped) {
    if (is_grouped) {
      ends_ = offsets.slice(0, 1);
    } else {
      const at::Tensor host = offsets.to(at::kCPU).contiguous();
      const auto* first = host.const_data_ptr<int32_t>();
      starts_.assign(first, first + host.numel());
    }
  }

  /// Returns a_e w_e. a: [A, p], w: [K, p, q]; returns [A, q].
  at::Tensor times(const at::Tensor& a, const at::Tensor& w) const {
    if (ends_.defined()) return at::_grouped_mm(a, w, ends_);
    const at::Tensor to = at::empty({a.size(0), w.size(2)}, a.options());
    for_experts([&](int64_t e, int64_t begin, int64_t rows) {
      at::Tensor part = to.narrow(0, begin, rows);
      if (rows > 0) at::mm_out(part, a.narrow(0, begin, rows), w.select(0, e));
    });
    return to;
  }

  /// Returns left_e^T right_e. left: [A, p], right: [A, q]; returns [K, p, q].
  at::Tensor by_rows(const at::Tensor& left, const at::Tensor& right) const {
    if (ends_.defined()) return at::_grouped_mm(left.t(), right, ends_);
    const auto experts = static_cast<int64_t>(starts_.size()) - 1;
    const at::Tensor to = at::empty({experts, left.size(1), right.size(1)}, left.options());
    for_experts([&](int64_t e, int64_t begin, int64_t rows) {
      at::Tensor part = to.select(0, e);
      if (rows > 0) at::mm_out(part, left.narrow(0, begin, rows).t(), right.narrow(0, begin, rows));
    });
    return to;
  }

 private:
  template <class Visit>
  void for_experts(const Visit& visit) const {
    for (size_t e = 0; e + 1 < starts_.size(); ++e) {
      visit(static_cast<int64_t>(e), starts_[e], starts_[e + 1] - starts_[e]);
    }
  }

  at::Tensor ends_;
  std::vector<int32_t> starts_;
};

}  // namespace moesaic::ops
