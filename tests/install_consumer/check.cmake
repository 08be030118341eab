# Installs BUILD into SCRATCH, then configures, builds and runs a program of some packages against it. Then it configures
# the consumer of all packages, which check_packages.cmake builds, with other versions of LibTorch than VERSION.
set(required BUILD GENERATOR SCRATCH VERSION)
include("${CMAKE_CURRENT_LIST_DIR}/consume.cmake")

file(REMOVE_RECURSE "${SCRATCH}") # files of an earlier install must not help
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")

# A program of some packages, whose static libraries are linked one by one.
configure("${CMAKE_CURRENT_LIST_DIR}/components" components -D "CMAKE_PREFIX_PATH=${SCRATCH}/prefix")
run("${CMAKE_COMMAND}" --build "${SCRATCH}/components")
execute_process(COMMAND "${SCRATCH}/components/consumer" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "\"DeepFM\" auc\n")
  message(FATAL_ERROR "expected the class and the metric, but got '${output}'")
endif()

# A package that there is not.
file(WRITE "${SCRATCH}/unknown/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(tessera REQUIRED COMPONENTS training graphs)
")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${SCRATCH}/unknown" -B "${SCRATCH}/unknown/build" -G "${GENERATOR}" -D
          "CMAKE_PREFIX_PATH=${SCRATCH}/prefix"
  RESULT_VARIABLE status
  OUTPUT_QUIET
  ERROR_VARIABLE errors)
string(REGEX REPLACE "[ \n]+" " " errors "${errors}") # CMake wraps messages
if(status EQUAL 0 OR NOT errors MATCHES "expected COMPONENTS of core [a-z ]*training[a-z ]*, but got graphs")
  message(FATAL_ERROR "expected an error that names the package graphs, but got:\n${errors}")
endif()

# make_libtorch(VERSION): makes a folder that find_package takes for this version of LibTorch.
function(make_libtorch version)
  string(REPLACE "." ";" numbers "${version}")
  list(GET numbers 0 major)
  list(GET numbers 1 minor)
  list(GET numbers 2 patch)
  set(folder "${SCRATCH}/libtorch-${version}")
  file(WRITE "${folder}/include/torch/headeronly/version.h"
       "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH ${patch}\n")
  foreach(file IN ITEMS include/ATen/core/Tensor.h include/torch/csrc/api/include/torch/all.h lib/libtorch_cpu.so
                        lib/libc10.so)
    file(WRITE "${folder}/${file}" "")
  endforeach()
endfunction()

string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" minor_version "${VERSION}")
set(major "${CMAKE_MATCH_1}")
math(EXPR next "${CMAKE_MATCH_2} + 1")
math(EXPR previous "${CMAKE_MATCH_2} - 1")
math(EXPR next_major "${major} + 1")

foreach(version IN ITEMS "${minor_version}.0" "${minor_version}.97")
  make_libtorch("${version}")
  configure("${CMAKE_CURRENT_LIST_DIR}" "configure-${version}" -D "CMAKE_PREFIX_PATH=${SCRATCH}/prefix" -D
            "LibTorch_ROOT=${SCRATCH}/libtorch-${version}")
endforeach()
foreach(version IN ITEMS "${major}.${next}.0" "${major}.${previous}.97" "${next_major}.${CMAKE_MATCH_2}.1")
  make_libtorch("${version}")
  expect_refusal(
    "configure-${version}"
    "expected LibTorch ${minor_version}, with any patch release, because this Tessera was built with ${VERSION}, but got ${version} in ${SCRATCH}/libtorch-${version}. Configure with -DCMAKE_PREFIX_PATH=<folder of LibTorch ${minor_version}>, or build Tessera with LibTorch ${version}."
    -D "CMAKE_PREFIX_PATH=${SCRATCH}/prefix" -D "LibTorch_ROOT=${SCRATCH}/libtorch-${version}")
endforeach()
