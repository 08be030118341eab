# Installs the headers, the libraries, the license and the package for find_package(tessera).

include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

# The core and each package are components of find_package(tessera).
foreach(component IN ITEMS core ${TESSERA_BUILT_PACKAGES})
  get_property(targets DIRECTORY PROPERTY TESSERA_TARGETS_OF_${component})
  install(
    TARGETS tessera_package_${component} ${targets}
    EXPORT tessera_${component}
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT tessera_${component} NAMESPACE tessera:: DESTINATION "${package_folder}")
endforeach()
tessera_public_headers(headers)
set(left_out "")
if(NOT dense IN_LIST TESSERA_BUILT_PACKAGES)
  set(left_out REGEX "/layers/dense$" EXCLUDE)
endif()
foreach(folder IN LISTS headers_FOLDERS)
  install(DIRECTORY "${folder}/tessera" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${left_out})
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/include/tessera/tessera.h" "${PROJECT_BINARY_DIR}/include/tessera/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tessera")

if(distributed IN_LIST TESSERA_BUILT_PACKAGES)
  install(PROGRAMS packages/distributed/src/launch.py DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME tessera_launch)
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/libtessera-dev" RENAME copyright)

# The package accepts a LibTorch in [2.14.0, 2.15) if this one is 2.14.1.
string(REGEX REPLACE "^([0-9]+\\.[0-9]+).*" "\\1" LibTorch_MINOR_VERSION "${LibTorch_VERSION}")
string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\2" minor "${LibTorch_VERSION}")
math(EXPR minor "${minor} + 1")
string(REGEX REPLACE "^([0-9]+).*" "\\1.${minor}" LibTorch_NEXT_MINOR_VERSION "${LibTorch_VERSION}")

configure_package_config_file(
  cmake/tesseraConfig.cmake.in "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
  INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" cmake/FindLibTorch.cmake
              cmake/FindISAL.cmake
              cmake/FindTesseraArrow.cmake
              cmake/FindTesseraFaiss.cmake
        DESTINATION "${package_folder}")
