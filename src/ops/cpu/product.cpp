// SPDX-License-Identifier: Apache-2.0
#include "product.h"

#include "moesaic/base/error.h"
#include "moesaic/ops/device.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <cstdlib>
#include <exception>

namespace moesaic::ops {
namespace {

namespace blas = at::native::cpublas;

// The micro-kernel is compiled once for each number of rows and kept for ever, so that any number
// is made of few: kRowBlock, multiples of kRowStep below it, and what is left below kRowStep.
constexpr int64_t kRowBlock = 128, kRowStep = 16;

template <class Scalar, class Left, class Sum>
void multiply_blocks(const Product<Scalar, Left, Sum>& p) {
  for (int64_t row = 0; row < p.rows;) {
    const int64_t left = p.rows - row;
    const int64_t rows = left >= kRowBlock  ? kRowBlock
                         : left >= kRowStep ? left / kRowStep * kRowStep
                                            : left;
    blas::brgemm(rows, p.columns, p.depth, p.a_stride, p.b_stride, p.c_stride, p.accumulate,
                 p.a + row * p.a_stride, p.b, p.c + row * p.c_stride,
                 /*is_vnni=*/sizeof(Scalar) < 4);
    row += rows;
  }
}

/// Read once: threads ask for each panel.
bool is_generic() {
  static const bool generic = [] {
    const char* asked = std::getenv("MOESAIC_CPU");
    if (asked == nullptr || std::string_view(asked).empty()) return false;
    if (std::string_view(asked) != "generic") {
      fail_usage("MOESAIC_CPU is '{}'; its only value is 'generic'", asked);
    }
    return true;
  }();
  return generic;
}

/// Multiplies a row (1, 2) by a matrix that is different things in different layouts.
template <class Scalar>
ProductLayout probe() {
  const Scalar a[] = {1, 2}, b[] = {1, 2, 3, 4};
  float c[2] = {};
  try {
    blas::brgemm(1, 2, 2, 2, 2, 2, false, a, b, c, /*is_vnni=*/true);
    blas::brgemm_release();
  } catch (const std::exception&) {  // LibTorch's, or oneDNN's own.
    return ProductLayout::none;
  }
  if (c[0] == 7 && c[1] == 10) return ProductLayout::rows;    // [[1, 2], [3, 4]]
  if (c[0] == 5 && c[1] == 11) return ProductLayout::paired;  // [[1, 3], [2, 4]]
  return ProductLayout::none;
}

/// Multiplies (1, 2, 3, 4) by two columns that lie one after the other.
bool probe_int8() {
  const uint8_t a[] = {1, 2, 3, 4};
  const int8_t b[] = {1, 2, 3, -4, 5, -6, 7, 8};
  int32_t c[2] = {};
  try {
    blas::brgemm(1, 2, 4, 4, 2, 2, false, a, b, c, /*is_vnni=*/true);
    blas::brgemm_release();
  } catch (const std::exception&) {  // LibTorch's, or oneDNN's own.
    return false;
  }
  return c[0] == -2 && c[1] == 46;
}

}  // namespace

void multiply(const Product<float>& product) {
  multiply_blocks(product);
}

void multiply(const Product<c10::BFloat16>& product) {
  multiply_blocks(product);
}

void multiply(const Product<c10::Half>& product) {
  multiply_blocks(product);
}

void multiply(const Product<int8_t, uint8_t, int32_t>& product) {
  multiply_blocks(product);
}

void multiply(const Product<double>& p) {
  const auto matrix = [](const double* data, int64_t rows, int64_t columns, int64_t stride) {
    return at::from_blob(const_cast<double*>(data), {rows, columns}, {stride, 1},
                         at::TensorOptions(at::kDouble));
  };
  const at::Tensor a = matrix(p.a, p.rows, p.depth, p.a_stride);
  const at::Tensor b = matrix(p.b, p.depth, p.columns, p.b_stride);
  at::Tensor c = matrix(p.c, p.rows, p.columns, p.c_stride);
  p.accumulate ? at::addmm_out(c, c, a, b) : at::mm_out(c, a, b);
}

ProductsOfThread::~ProductsOfThread() {
  blas::brgemm_release();
}

template <class Scalar>
ProductLayout product_layout() {
  static const ProductLayout found = probe<Scalar>();
  return is_generic() ? ProductLayout::none : found;
}
template ProductLayout product_layout<c10::BFloat16>();
template ProductLayout product_layout<c10::Half>();

}  // namespace moesaic::ops

namespace moesaic {

bool has_int8_matmul() {
  static const bool found = ops::probe_int8();
  return !ops::is_generic() && found;
}

std::string cpu_matmul_dtypes() {
  using ops::product_layout, ops::ProductLayout;
  if (ops::is_generic()) return "ATen's, in float32 (MOESAIC_CPU=generic)";
  std::string types = "float32";
  if (product_layout<c10::BFloat16>() != ProductLayout::none) types += ", bfloat16";
  if (product_layout<c10::Half>() != ProductLayout::none) types += ", float16";
  if (has_int8_matmul()) types += ", int8";
  return types;
}

}  // namespace moesaic
