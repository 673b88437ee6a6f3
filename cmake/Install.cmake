# SPDX-License-Identifier: Apache-2.0
# Components: runtime is what the program needs, development what a project that links the library needs in addition, and
# bundle, which is installed by name only, what tools/bundle.sh adds.
include(CMakePackageConfigHelpers)
set(moesaic_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moesaic)

install(TARGETS moesaic EXPORT moesaicTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS moesaic_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(DIRECTORY datasets models DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic COMPONENT runtime
  PATTERN cache EXCLUDE)
install(FILES checkpoints/released.json DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/checkpoints
  COMPONENT runtime)

install(FILES tools/python/export_program.py DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/tools/python
  COMPONENT runtime)

set(programs moesaic_program)
if(TARGET tests_gpu)
  install(TARGETS tests_gpu RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT bundle EXCLUDE_FROM_ALL)
  list(APPEND programs tests_gpu)
endif()
set_target_properties(${programs} PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${MOESAIC_TORCH_PREFIX}/lib")
set_target_properties(moesaic PROPERTIES INSTALL_RPATH "$ORIGIN;${MOESAIC_TORCH_PREFIX}/lib")

install(EXPORT moesaicTargets NAMESPACE moesaic:: DESTINATION ${moesaic_cmake_dir} COMPONENT development)
install(DIRECTORY include/moesaic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
configure_package_config_file(cmake/moesaicConfig.cmake.in ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  INSTALL_DESTINATION ${moesaic_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  ${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake cmake/LibTorch.cmake
  DESTINATION ${moesaic_cmake_dir} COMPONENT development)
