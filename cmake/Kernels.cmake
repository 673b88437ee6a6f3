# SPDX-License-Identifier: Apache-2.0
# The GPU's half of the operators. Files ops/cuda/*.cu know no LibTorch, compile in seconds, and need nvcc but no GPU;
# ops/cuda/*.cpp stand between them and tensors.
set(MOESAIC_GPU_CODE "arch=compute_90,code=sm_90;arch=compute_80,code=sm_80;arch=compute_80,code=compute_80"
  CACHE STRING "What nvcc generates: machine code for Hopper and Ampere, and PTX that a driver compiles for later chips")

file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu)
add_library(moesaic_kernels OBJECT ${kernel_sources})
# CMake 3.25 does not know nvcc 13's flag for C++20.
set_target_properties(moesaic_kernels PROPERTIES
  CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Shared UNITY_BUILD OFF)
foreach(code ${MOESAIC_GPU_CODE})
  target_compile_options(moesaic_kernels PRIVATE "SHELL:-gencode ${code}")
endforeach()
target_include_directories(moesaic_kernels PRIVATE ${PROJECT_SOURCE_DIR}/include)
# Registers that spill into memory are warned of: no kernel does.
target_compile_options(moesaic_kernels PRIVATE -Xcompiler=-Wall,-Wextra
  -Xptxas=--warn-on-spills,--warn-on-local-memory-usage)
if(MOESAIC_WERROR)
  target_compile_options(moesaic_kernels PRIVATE "SHELL:-Werror all-warnings")
endif()
# Routing decides by bits that have to equal the CPU's (moesaic/ops/softmax_exp.h): products are fused by name only.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/ops/cuda/route.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
target_sources(moesaic PRIVATE $<TARGET_OBJECTS:moesaic_kernels>)
target_link_libraries(moesaic PRIVATE $<BUILD_INTERFACE:CUDA::cudart>)
