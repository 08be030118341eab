# Builds the fuzzer over the libraries in BUILD and runs it for SECONDS.
foreach(variable IN ITEMS BUILD COMPILER GENERATOR LIBTORCH SCRATCH SECONDS)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check.cmake needs -D ${variable}=...")
  endif()
endforeach()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${SCRATCH}" -G "${GENERATOR}" -D
    "CMAKE_CXX_COMPILER=${COMPILER}" -D CMAKE_BUILD_TYPE=None -D CMAKE_UNITY_BUILD=ON -D "TESSERA_BUILD=${BUILD}" -D
    "LibTorch_ROOT=${LIBTORCH}")
run("${CMAKE_COMMAND}" --build "${SCRATCH}")
file(MAKE_DIRECTORY "${SCRATCH}/corpus")
run("${CMAKE_COMMAND}" -E env "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/../lsan.supp"
    "${SCRATCH}/reader_fuzz" "-max_total_time=${SECONDS}" -max_len=4096 -timeout=20 -rss_limit_mb=4096
    -print_final_stats=1 "-artifact_prefix=${SCRATCH}/" "${SCRATCH}/corpus" "${CMAKE_CURRENT_LIST_DIR}/seeds")
