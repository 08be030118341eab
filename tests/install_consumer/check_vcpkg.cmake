# Checks the port of vcpkg in SOURCE as far as that is possible without vcpkg.
set(required GENERATOR LIBTORCH SCRATCH SOURCE VERSION)
include("${CMAKE_CURRENT_LIST_DIR}/consume.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
set(port "${SOURCE}/cmake/vcpkg/tessera")
file(READ "${port}/vcpkg.json" manifest)
string(JSON version GET "${manifest}" version)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "expected version ${VERSION} in ${port}/vcpkg.json, but got ${version}")
endif()

# Without LibTorch, the port says what to do.
set(command "${CMAKE_COMMAND}" -D "GENERATOR=${GENERATOR}" -D "PORT=${port}" -D "SCRATCH=${SCRATCH}" -P
            "${CMAKE_CURRENT_LIST_DIR}/vcpkg_port.cmake")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env --unset=LibTorch_ROOT ${command}
  RESULT_VARIABLE status
  OUTPUT_QUIET
  ERROR_VARIABLE errors)
string(REGEX REPLACE "[ \n]+" " " errors "${errors}") # CMake wraps messages
if(status EQUAL 0 OR NOT errors MATCHES "in the environment variable LibTorch_ROOT, but it is empty")
  message(FATAL_ERROR "expected an error that names LibTorch_ROOT, but got:\n${errors}")
endif()

run("${CMAKE_COMMAND}" -E env "LibTorch_ROOT=${LIBTORCH}" ${command})
file(STRINGS "${SCRATCH}/build/CMakeCache.txt" enabled REGEX "^TESSERA_(WITH_MPI|WITH_FAISS|WITH_ARROW|BUILD_TESTS):BOOL=ON")
if(enabled)
  message(FATAL_ERROR "expected no MPI, faiss, Arrow and tests without features, but got '${enabled}'")
endif()
