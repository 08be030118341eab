# An overlay port, which builds the sources that it is in: vcpkg install tessera --overlay-ports=<tessera>/cmake/vcpkg
# vcpkg has no LibTorch of its own for this. LibTorch_ROOT names the user's (docs/install.md).

vcpkg_check_linkage(ONLY_STATIC_LIBRARY)

cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")

if("$ENV{LibTorch_ROOT}" STREQUAL "" AND NOT "${VCPKG_CMAKE_CONFIGURE_OPTIONS}" MATCHES "LibTorch_ROOT")
  message(FATAL_ERROR
          "expected LibTorch's folder in the environment variable LibTorch_ROOT, but it is empty. Set it, and also"
          " VCPKG_KEEP_ENV_VARS=LibTorch_ROOT, because vcpkg clears the environment.")
endif()

vcpkg_check_features(
  OUT_FEATURE_OPTIONS features
  FEATURES
    arrow TESSERA_WITH_ARROW
    faiss TESSERA_WITH_FAISS
    mpi TESSERA_WITH_MPI)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${features}
    -DTESSERA_BUILD_BENCHMARKS=OFF
    -DTESSERA_BUILD_EXAMPLES=OFF
    -DTESSERA_BUILD_TESTS=OFF
    -DTESSERA_UNITY_BUILD=ON
    -DTESSERA_WERROR=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME tessera CONFIG_PATH lib/cmake/tessera)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
     "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
