# SPDX-License-Identifier: Apache-2.0
# Gives the target moesaic::torch. The wheel's own TorchConfig.cmake insists on a CUDA toolkit, so a CPU-only
# build describes the two libraries that it needs by itself; installed consumers include this same file.
#
# LibTorch is found through Torch_DIR or CMAKE_PREFIX_PATH (variables or environment).
if(NOT TARGET moesaic::torch)
  string(REPLACE ":" ";" moesaic_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  find_path(MOESAIC_TORCH_CMAKE_DIR TorchConfig.cmake
    HINTS ${Torch_DIR} $ENV{Torch_DIR} ${CMAKE_PREFIX_PATH} ${moesaic_prefixes}
    PATHS ${MOESAIC_TORCH_LAST}  # so that ninja may configure again by itself
    PATH_SUFFIXES share/cmake/Torch Torch torch/share/cmake/Torch
    NO_CACHE)  # a LibTorch that is given later must win
  if(NOT MOESAIC_TORCH_CMAKE_DIR)
    message(FATAL_ERROR "LibTorch not found: run tools/setup.sh, or give Torch_DIR or CMAKE_PREFIX_PATH")
  endif()
  set(MOESAIC_TORCH_LAST ${MOESAIC_TORCH_CMAKE_DIR} CACHE INTERNAL "where LibTorch was found last")
  get_filename_component(MOESAIC_TORCH_PREFIX "${MOESAIC_TORCH_CMAKE_DIR}/../../.." ABSOLUTE)

  add_library(moesaic::torch INTERFACE IMPORTED GLOBAL)
  if(MOESAIC_CUDA)
    set(Torch_DIR ${MOESAIC_TORCH_CMAKE_DIR})
    # Torch's package asks the machine's GPU, which there may not be, and with C++20, which CMake 3.25 does not know
    # of nvcc 13, unless both are given. It then adds its architectures to every CUDA file; ours are in Kernels.cmake.
    if(NOT DEFINED CMAKE_CUDA_STANDARD)
      set(CMAKE_CUDA_STANDARD 17)
    endif()
    if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
      set(TORCH_CUDA_ARCH_LIST "9.0a")
    endif()
    set(moesaic_cuda_flags "${CMAKE_CUDA_FLAGS}")
    find_package(Torch REQUIRED)
    set(CMAKE_CUDA_FLAGS "${moesaic_cuda_flags}")
    # The wheel's libtorch.so exports parts of std::filesystem that crash when called; the real ones must come first.
    target_link_libraries(moesaic::torch INTERFACE stdc++ torch c10)
    target_compile_definitions(moesaic::torch INTERFACE MOESAIC_WITH_CUDA)
  else()
    foreach(name torch_cpu c10)
      find_library(MOESAIC_LIB_${name} ${name} PATHS ${MOESAIC_TORCH_PREFIX}/lib
        NO_DEFAULT_PATH NO_CACHE REQUIRED)
    endforeach()
    target_link_libraries(moesaic::torch INTERFACE ${MOESAIC_LIB_torch_cpu} ${MOESAIC_LIB_c10})
    # libtorch_cpu's own CUDA runtime stubs live beside it in the wheel and are found by its RPATH.
    target_link_options(moesaic::torch INTERFACE -Wl,--allow-shlib-undefined)
  endif()
  target_include_directories(moesaic::torch SYSTEM INTERFACE
    ${MOESAIC_TORCH_PREFIX}/include ${MOESAIC_TORCH_PREFIX}/include/torch/csrc/api/include)
  # LibTorch brings newer fmt headers than the distribution's library: header-only avoids the clash.
  target_compile_definitions(moesaic::torch INTERFACE FMT_HEADER_ONLY)

  file(STRINGS ${MOESAIC_TORCH_CMAKE_DIR}/TorchConfigVersion.cmake moesaic_version_line
    REGEX "PACKAGE_VERSION \"")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" MOESAIC_TORCH_VERSION "${moesaic_version_line}")
  message(STATUS "LibTorch ${MOESAIC_TORCH_VERSION} in ${MOESAIC_TORCH_PREFIX} (CUDA: ${MOESAIC_CUDA})")
endif()
