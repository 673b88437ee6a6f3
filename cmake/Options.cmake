# SPDX-License-Identifier: Apache-2.0
# Compiler options of this project's own targets only: nothing here reaches a user who links moesaic.
add_library(moesaic_options INTERFACE)
target_compile_options(moesaic_options INTERFACE
  -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror=return-type)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in std::string and out-of-range elements in LibTorch's tuples that are not there.
  target_compile_options(moesaic_options INTERFACE -Wno-restrict -Wno-array-bounds)
endif()
if(MOESAIC_WERROR)
  target_compile_options(moesaic_options INTERFACE -Werror)
endif()
if(MOESAIC_SANITIZE)
  # Instrumented code misleads the warning of uninitialised variables.
  target_compile_options(moesaic_options INTERFACE
    -fsanitize=${MOESAIC_SANITIZE} -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  target_link_options(moesaic_options INTERFACE -fsanitize=${MOESAIC_SANITIZE})
endif()
if(CMAKE_UNITY_BUILD)
  # Sources look like headers there, whose private types would be a mistake.
  target_compile_options(moesaic_options INTERFACE -Wno-subobject-linkage)
endif()

# LibTorch's headers take some ten seconds of every file. A unity build (presets release, cuda, cpu-only and asan)
# pays them once for several files; a build of single files (preset debug) keeps them precompiled.
function(moesaic_heavy_headers target)
  if(CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 8)
  else()
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
