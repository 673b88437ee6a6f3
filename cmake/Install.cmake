# SPDX-License-Identifier: Apache-2.0
# Components: runtime is what the program needs, development what a project that links the library needs in addition, and
# bundle, which is installed by name only, what tools/bundle.sh adds.
include(CMakePackageConfigHelpers)
set(moesaic_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moesaic)
set(moesaic_torch_lib ${MOESAIC_TORCH_PREFIX}/lib)
if(SKBUILD)  # A wheel lies beside PyTorch's folder and has no links: they would become copies.
  if(NOT MOESAIC_TORCH_VERSION MATCHES "^2\\.11\\.")
    message(FATAL_ERROR "The wheel is for PyTorch 2.11, and ${MOESAIC_TORCH_PREFIX} is ${MOESAIC_TORCH_VERSION}")
  endif()
  set(moesaic_torch_lib "$ORIGIN/../../torch/lib")
  set(MOESAIC_TORCH_CMAKE_DIR "\${CMAKE_CURRENT_LIST_DIR}/../../../../torch/share/cmake/Torch")
  set_property(TARGET moesaic PROPERTY VERSION)
  set_property(TARGET moesaic PROPERTY SOVERSION)
endif()

install(TARGETS moesaic EXPORT moesaicTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS moesaic_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(DIRECTORY datasets models DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic COMPONENT runtime
  PATTERN cache EXCLUDE)
install(FILES checkpoints/released.json DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/checkpoints
  COMPONENT runtime)

install(FILES tools/python/export_program.py DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/tools/python
  COMPONENT runtime)
install(FILES tests/bench/loader_peer.py DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/tests/bench
  COMPONENT runtime)

set(programs moesaic_program)
if(TARGET tests_gpu)
  install(TARGETS tests_gpu RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT bundle EXCLUDE_FROM_ALL)
  list(APPEND programs tests_gpu)
endif()
set_target_properties(${programs} PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${moesaic_torch_lib}")
set_target_properties(moesaic PROPERTIES INSTALL_RPATH "$ORIGIN;${moesaic_torch_lib}")

install(EXPORT moesaicTargets NAMESPACE moesaic:: DESTINATION ${moesaic_cmake_dir} COMPONENT development)
install(DIRECTORY include/moesaic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
configure_package_config_file(cmake/moesaicConfig.cmake.in ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  INSTALL_DESTINATION ${moesaic_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  ${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake cmake/LibTorch.cmake
  DESTINATION ${moesaic_cmake_dir} COMPONENT development)
