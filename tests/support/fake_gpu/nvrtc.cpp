// SPDX-License-Identifier: Apache-2.0
// The compiler of kernels that LibTorch makes while the program runs: every program is empty.
#include <cstddef>

#include "stubs.h"

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
const char* nvrtcGetErrorString(int) {
  return "an error of the fake GPU's compiler";
}
FAKE_GPU_CREATE(nvrtcCreateProgram)
FAKE_GPU_SUCCEED(nvrtcDestroyProgram)
FAKE_GPU_SUCCEED(nvrtcAddNameExpression)
FAKE_GPU_SUCCEED(nvrtcCompileProgram)
int nvrtcGetLoweredName(void*, const char* expression, const char** name) {
  *name = expression;
  return 0;
}
FAKE_GPU_SET_SECOND(nvrtcGetPTXSize, size_t, 1)
FAKE_GPU_SET_SECOND(nvrtcGetPTX, char, 0)
FAKE_GPU_SET_SECOND(nvrtcGetCUBINSize, size_t, 1)
FAKE_GPU_SET_SECOND(nvrtcGetCUBIN, char, 0)
FAKE_GPU_SET_SECOND(nvrtcGetProgramLogSize, size_t, 1)
FAKE_GPU_SET_SECOND(nvrtcGetProgramLog, char, 0)

}  // extern "C"
