# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(moesaic_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moesaic)

install(TARGETS moesaic EXPORT moesaicTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS moesaic_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set_target_properties(moesaic_program PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${MOESAIC_TORCH_PREFIX}/lib")
set_target_properties(moesaic PROPERTIES INSTALL_RPATH "${MOESAIC_TORCH_PREFIX}/lib")
install(EXPORT moesaicTargets NAMESPACE moesaic:: DESTINATION ${moesaic_cmake_dir})
install(DIRECTORY include/moesaic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY datasets models DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic
  PATTERN cache EXCLUDE)
install(FILES checkpoints/released.json DESTINATION ${CMAKE_INSTALL_DATADIR}/moesaic/checkpoints)

configure_package_config_file(cmake/moesaicConfig.cmake.in ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  INSTALL_DESTINATION ${moesaic_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moesaicConfig.cmake
  ${PROJECT_BINARY_DIR}/moesaicConfigVersion.cmake cmake/LibTorch.cmake
  DESTINATION ${moesaic_cmake_dir})
