# SPDX-License-Identifier: Apache-2.0
"""Batched products of cuBLASLt with GELU or its derivative in the epilogue, which no call of PyTorch 2.11 reaches.

Names and values are those of cublasLt.h of CUDA 13. Tensors are row-major and bfloat16; to cuBLASLt, which counts
columns first, a row-major [rows, columns] is a matrix of `columns` x `rows`, so left and right change places.
"""
import ctypes

import torch

CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F = 0, 14, 68
DESC_TRANSA, DESC_EPILOGUE, DESC_BIAS_POINTER, DESC_BIAS_BATCH_STRIDE = 3, 7, 8, 10
DESC_AUX_POINTER, DESC_AUX_LD, DESC_AUX_BATCH_STRIDE, DESC_BIAS_TYPE = 11, 12, 13, 26
LAYOUT_BATCH_COUNT, LAYOUT_BATCH_STRIDE, PREFERENCE_WORKSPACE = 5, 6, 1
GELU_BIAS, GELU_AUX_BIAS, DGELU = 36, 164, 192
WORKSPACE_BYTES = 64 << 20
c_ptr, c_int, c_size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace", c_size), ("state", c_int), ("waves", ctypes.c_float),
                ("reserved", c_int * 4)]


def library() -> ctypes.CDLL:
    """The library that torch has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [line.split()[-1] for line in maps if "libcublasLt.so" in line]
    if not paths:
        raise OSError("torch has not loaded libcublasLt")
    return ctypes.CDLL(paths[0])


def check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} returned {status}")


class BatchedProduct:
    """out_ERN = epilogue(left_ERK @ right_EKN), or @ the transpose of right_ENK.

    `bias_EN` is added before GELU, `aux_ERN` takes what GELU was applied to. With `derivative`, `aux_ERN` is read and
    the product is multiplied by GELU's derivative at it.
    """

    def __init__(self, left, right, out, bias=None, aux=None, transposed=False, derivative=False):
        self.lt, self.alive = library(), (left, right, out, bias, aux)
        self.work = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=out.device)
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)
        self.handle, self.description = c_ptr(torch.cuda.current_blas_handle()), c_ptr()  # a cuBLAS handle serves as well
        self.call("cublasLtMatmulDescCreate", ctypes.byref(self.description), c_int(CUBLAS_COMPUTE_32F), c_int(CUDA_R_32F))
        if transposed:
            self.describe(DESC_TRANSA, c_int(1))
        self.describe(DESC_EPILOGUE, c_int(DGELU if derivative else GELU_BIAS if aux is None else GELU_AUX_BIAS))
        if bias is not None:
            self.describe(DESC_BIAS_POINTER, c_ptr(bias.data_ptr()))
            self.describe(DESC_BIAS_BATCH_STRIDE, ctypes.c_int64(bias.stride(0)))
            self.describe(DESC_BIAS_TYPE, c_int(CUDA_R_16BF))
        if aux is not None:
            self.describe(DESC_AUX_POINTER, c_ptr(aux.data_ptr()))
            self.describe(DESC_AUX_LD, ctypes.c_int64(aux.stride(1)))
            self.describe(DESC_AUX_BATCH_STRIDE, ctypes.c_int64(aux.stride(0)))
        self.layouts = [self.layout(tensor) for tensor in (right, left, out)]
        self.choose()

    def call(self, name: str, *arguments) -> None:
        check(getattr(self.lt, name)(*arguments), name)

    def describe(self, attribute: int, value) -> None:
        self.call("cublasLtMatmulDescSetAttribute", self.description, c_int(attribute), ctypes.byref(value),
                  c_size(ctypes.sizeof(value)))

    def layout(self, tensor) -> ctypes.c_void_p:
        experts, rows, columns = tensor.shape
        made = c_ptr()
        self.call("cublasLtMatrixLayoutCreate", ctypes.byref(made), c_int(CUDA_R_16BF), ctypes.c_uint64(columns),
                  ctypes.c_uint64(rows), ctypes.c_int64(tensor.stride(1)))
        for attribute, value in ((LAYOUT_BATCH_COUNT, ctypes.c_int32(experts)),
                                 (LAYOUT_BATCH_STRIDE, ctypes.c_int64(tensor.stride(0)))):
            self.call("cublasLtMatrixLayoutSetAttribute", made, c_int(attribute), ctypes.byref(value),
                      c_size(ctypes.sizeof(value)))
        return made

    def choose(self) -> None:
        preference, limit, count = c_ptr(), ctypes.c_uint64(WORKSPACE_BYTES), c_int()
        self.found = Heuristic()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        self.call("cublasLtMatmulPreferenceSetAttribute", preference, c_int(PREFERENCE_WORKSPACE), ctypes.byref(limit),
                  c_size(ctypes.sizeof(limit)))
        right, left, out = self.layouts
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, self.description, right, left, out, out, preference,
                  c_int(1), ctypes.byref(self.found), ctypes.byref(count))
        if count.value == 0:
            raise RuntimeError("cuBLASLt has no algorithm for this product and epilogue")

    def __call__(self):
        left, right, out = self.alive[:3]
        pointers = [c_ptr(tensor.data_ptr()) for tensor in (right, left, out)]
        to_right, to_left, to_out = self.layouts
        self.call("cublasLtMatmul", self.handle, self.description, ctypes.byref(self.one), pointers[0], to_right,
                  pointers[1], to_left, ctypes.byref(self.zero), pointers[2], to_out, pointers[2], to_out,
                  ctypes.byref(self.found), c_ptr(self.work.data_ptr()), c_size(WORKSPACE_BYTES),
                  c_ptr(torch.cuda.current_stream().cuda_stream))
        return out
