# SPDX-License-Identifier: Apache-2.0
# Compiler options of this project's own targets only: nothing here reaches a user who links moesaic.
add_library(moesaic_options INTERFACE)
target_compile_options(moesaic_options INTERFACE
  -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror=return-type)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  # GCC 12 sees overlaps in std::string and out-of-range elements in LibTorch's tuples that are not there.
  target_compile_options(moesaic_options INTERFACE -Wno-restrict -Wno-array-bounds)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # GCC 13 and 14 take vectors within a std::optional for uninitialised.
    target_compile_options(moesaic_options INTERFACE -Wno-maybe-uninitialized)
  endif()
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

# LibTorch's headers take some ten seconds of every file. A unity build pays them once for several files; builds of single
# files (preset debug) and, of many files, those with sanitizers keep them precompiled, which parts the compiler's cache by
# clone.
function(moesaic_heavy_headers target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources files)
  if(CMAKE_UNITY_BUILD)
    moesaic_unity_groups(${target})
  endif()
  if(NOT CMAKE_UNITY_BUILD OR (MOESAIC_SANITIZE AND files GREATER 100))
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# Joins about twenty files of one layer. A file's group follows from its name, so that a new file compiles its own
# group anew and not all that come after it.
function(moesaic_unity_groups target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(root ${target} SOURCE_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH path ${root} ${source})
    string(REPLACE "../" "" path ${path})
    if(path MATCHES "^(papers/[^/]+|[^/]+)/")  # Papers do not know each other's names.
      string(REPLACE "/" "_" layer ${CMAKE_MATCH_1})
    else()
      set(layer top)
    endif()
    list(APPEND layers ${layer})
    list(APPEND ${layer}_sources ${source})
  endforeach()
  list(REMOVE_DUPLICATES layers)
  foreach(layer IN LISTS layers)
    list(LENGTH ${layer}_sources count)
    math(EXPR groups "(${count} + 19) / 20")
    foreach(source IN LISTS ${layer}_sources)
      get_filename_component(name ${source} NAME)
      string(MD5 hash ${name})
      string(SUBSTRING ${hash} 0 4 hash)
      math(EXPR group "0x${hash} % ${groups}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${layer}_${group})
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()
