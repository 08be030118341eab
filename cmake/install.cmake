# Installs the headers, the libraries and the package for find_package(tessera).

include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

get_property(layers GLOBAL PROPERTY TESSERA_LAYERS)
install(
  TARGETS tessera ${layers}
  EXPORT tesseraTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION "${package_folder}")
install(DIRECTORY include/tessera DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

configure_package_config_file(
  cmake/tesseraConfig.cmake.in "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
  INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" cmake/FindLibTorch.cmake
              cmake/FindISAL.cmake cmake/Findutf8proc.cmake
              cmake/FindTesseraArrow.cmake
        DESTINATION "${package_folder}")
