# SPDX-License-Identifier: Apache-2.0
# The precompiled header needs the two sloppiness switches, or ccache refuses every file that uses it. Paths below
# BASEDIR count as relative ones, so that all clones of a machine share what was compiled.
find_program(CCACHE_PROGRAM ccache)
set(moesaic_ccache ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
  CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
foreach(language CXX CUDA)
  if(CCACHE_PROGRAM AND NOT CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${moesaic_ccache})
  endif()
endforeach()
