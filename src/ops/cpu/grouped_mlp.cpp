// SPDX-License-Identifier: Apache-2.0
// Each task takes a block of one expert's rows through both products, so that the hidden panel
// stays in cache and inference never writes [A, m]. Tasks are equal in size, hence a contiguous
// split over threads is balanced.
#include "moesaic/ops/grouped_mlp.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "../check.h"
#include "activation.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr int64_t kPanelRows = 128;

struct Panel {
  int64_t expert, begin, end;
};

std::vector<Panel> panels(const Tensor& offsets) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  std::vector<Panel> list;
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    const int64_t rows = begins[e + 1] - begins[e];
    const int64_t count = (rows + kPanelRows - 1) / kPanelRows;
    for (int64_t i = 0; i < count; ++i) {
      list.push_back({e, begins[e] + rows * i / count, begins[e] + rows * (i + 1) / count});
    }
  }
  return list;
}

int64_t filled_rows(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

struct Weights {
  Tensor w1, b1, w2, b2;
};

/// One panel: hidden = x W1 + b1 (left in `hidden`), y = act(hidden) W2 + b2.
void forward_panel(const Panel& panel, const Tensor& rows, const Weights& weights,
                   Activation activation, Tensor& hidden, Tensor& active, Tensor& y) {
  const int64_t count = panel.end - panel.begin;
  Tensor h = hidden.narrow(0, 0, count);
  Tensor a = active.narrow(0, 0, count);
  Tensor out = y.narrow(0, panel.begin, count);
  at::mm_out(h, rows.narrow(0, panel.begin, count), weights.w1.select(0, panel.expert));
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "grouped_mlp", [&] {
    bias_activation<scalar_t>(activation, h.mutable_data_ptr<scalar_t>(),
                              weights.b1.select(0, panel.expert).const_data_ptr<scalar_t>(),
                              a.mutable_data_ptr<scalar_t>(), count, h.size(1));
  });
  at::addmm_out(out, weights.b2.select(0, panel.expert), a, weights.w2.select(0, panel.expert));
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& rows_in, const Tensor& offsets,
                                       const Tensor& w1, const Tensor& b1, const Tensor& w2,
                                       const Tensor& b2, int64_t activation, bool keep_hidden) {
  check_grouped_mlp(rows_in, offsets, w1, b1, w2, b2, activation);
  const Tensor rows = rows_in.contiguous();
  const Weights weights{w1, b1.contiguous(), w2, b2};
  const int64_t width = w1.size(2);
  Tensor y = at::empty_like(rows);
  Tensor hidden = at::empty({keep_hidden ? rows.size(0) : 0, width}, rows.options());
  const std::vector<Panel> list = panels(offsets);
  at::parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor active = at::empty({kPanelRows, width}, rows.options());
    for (int64_t i = begin; i < end; ++i) {
      const Panel& panel = list[i];
      Tensor into = keep_hidden ? hidden.narrow(0, panel.begin, panel.end - panel.begin) : active;
      forward_panel(panel, rows, weights, static_cast<Activation>(activation), into, active, y);
    }
  });
  y.slice(0, filled_rows(offsets)).zero_();
  return {y, hidden};
}

struct Gradients {
  Tensor rows, w1, b1, w2, b2;
};

/// Turns hidden into act(hidden) and gives d loss / d hidden, panel by panel.
void backward_hidden(const std::vector<Panel>& list, const Tensor& grad, const Tensor& hidden,
                     const Tensor& w2, Activation activation, Tensor& active, Tensor& grad_hidden) {
  at::parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t i = begin; i < end; ++i) {
      const Panel& panel = list[i];
      const int64_t count = panel.end - panel.begin;
      Tensor gh = grad_hidden.narrow(0, panel.begin, count);
      at::mm_out(gh, grad.narrow(0, panel.begin, count), w2.select(0, panel.expert).t());
      AT_DISPATCH_FLOATING_TYPES(gh.scalar_type(), "grouped_mlp_backward", [&] {
        activation_backward<scalar_t>(
            activation, hidden.narrow(0, panel.begin, count).const_data_ptr<scalar_t>(),
            gh.mutable_data_ptr<scalar_t>(),
            active.narrow(0, panel.begin, count).mutable_data_ptr<scalar_t>(), gh.numel());
      });
    }
  });
}

void backward_rows(const std::vector<Panel>& list, const Tensor& grad_hidden, const Tensor& w1,
                   Tensor& grad_rows) {
  at::parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t i = begin; i < end; ++i) {
      const Panel& panel = list[i];
      const int64_t count = panel.end - panel.begin;
      Tensor to = grad_rows.narrow(0, panel.begin, count);
      at::mm_out(to, grad_hidden.narrow(0, panel.begin, count), w1.select(0, panel.expert).t());
    }
  });
}

/// Weight gradients sum over all rows of an expert: the products themselves use the threads, one
/// expert at a time.
void backward_weights(const Tensor& offsets, const Tensor& grad, const Tensor& rows,
                      const Tensor& active, const Tensor& grad_hidden, Gradients& out) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    const int64_t begin = begins[e];
    const int64_t count = begins[e + 1] - begin;
    Tensor w1 = out.w1.select(0, e), b1 = out.b1.select(0, e);
    Tensor w2 = out.w2.select(0, e), b2 = out.b2.select(0, e);
    if (count == 0) {
      for (Tensor* gradient : {&w1, &b1, &w2, &b2}) gradient->zero_();
      continue;
    }
    const Tensor gh = grad_hidden.narrow(0, begin, count);
    const Tensor gy = grad.narrow(0, begin, count);
    at::mm_out(w1, rows.narrow(0, begin, count).t(), gh);
    at::mm_out(w2, active.narrow(0, begin, count).t(), gy);
    at::sum_out(b1, gh, {0});
    at::sum_out(b2, gy, {0});
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_cpu(
    const Tensor& grad_in, const Tensor& rows_in, const Tensor& offsets, const Tensor& hidden,
    const Tensor& w1, const Tensor& w2, int64_t activation) {
  const Tensor grad = grad_in.contiguous();
  const Tensor rows = rows_in.contiguous();
  Gradients out{at::empty_like(rows), at::empty_like(w1),
                at::empty({w1.size(0), w1.size(2)}, w1.options()), at::empty_like(w2),
                at::empty({w2.size(0), w2.size(2)}, w2.options())};
  Tensor active = at::empty_like(hidden);
  Tensor grad_hidden = at::empty_like(hidden);
  const std::vector<Panel> list = panels(offsets);
  backward_hidden(list, grad, hidden, w2, static_cast<Activation>(activation), active, grad_hidden);
  backward_rows(list, grad_hidden, w1, out.rows);
  out.rows.slice(0, filled_rows(offsets)).zero_();
  backward_weights(offsets, grad, rows, active, grad_hidden, out);
  return {out.rows, out.w1, out.b1, out.w2, out.b2};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("grouped_mlp", forward_cpu);
  m.impl("grouped_mlp_backward", backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
