# Finds the packages that Tessera is built from. If one is missing, the error names its Debian package.

function(tessera_require target debian_package)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "[tessera] expected the CMake target ${target}, but it was not found."
                        " Run ./run setup, or: apt-get install ${debian_package}")
  endif()
endfunction()

set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON) # a parent project links these, too
set(LibTorch_FALLBACK_DIR "${PROJECT_SOURCE_DIR}/.deps/libtorch")
find_package(LibTorch 2.14 MODULE REQUIRED)

find_package(OpenMP COMPONENTS CXX QUIET)
tessera_require(OpenMP::OpenMP_CXX g++)
find_package(hwy CONFIG QUIET)
tessera_require(hwy::hwy libhwy-dev)
find_package(nlohmann_json CONFIG QUIET)
tessera_require(nlohmann_json::nlohmann_json nlohmann-json3-dev)
find_package(ZLIB QUIET)
tessera_require(ZLIB::ZLIB zlib1g-dev)
find_package(ISAL MODULE QUIET)
tessera_require(ISAL::ISAL libisal-dev)
find_package(utf8proc MODULE QUIET)
tessera_require(utf8proc::utf8proc libutf8proc-dev)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(XXHASH_INCLUDE_DIR) # only the header is used, so nothing is linked
  add_library(tessera_xxhash INTERFACE)
  target_include_directories(tessera_xxhash SYSTEM INTERFACE "${XXHASH_INCLUDE_DIR}")
endif()
tessera_require(tessera_xxhash libxxhash-dev)
if(TESSERA_BUILD_EXAMPLES OR TESSERA_BUILD_BENCHMARKS)
  find_package(CLI11 CONFIG QUIET)
  tessera_require(CLI11::CLI11 libcli11-dev)
endif()
if(TESSERA_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  tessera_require(GTest::gtest_main libgtest-dev)
endif()
