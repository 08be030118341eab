# Builds the fuzzers over the libraries in BUILD and runs each of them for SECONDS with the random SEED, where 0 means
# another one each time. The environment variable TESSERA_FUZZ_SECONDS replaces both. Without ARROW, the fuzzer of files
# with examples is left out.
foreach(variable IN ITEMS ARROW BUILD COMPILER GENERATOR LIBTORCH SCRATCH SECONDS SEED)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check.cmake needs -D ${variable}=...")
  endif()
endforeach()

# A long campaign, whose random numbers are others each time.
if(DEFINED ENV{TESSERA_FUZZ_SECONDS})
  set(SECONDS $ENV{TESSERA_FUZZ_SECONDS})
  set(SEED 0)
endif()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# A damaged archive may ask LibTorch's reader for any amount of memory. Such a request fails like one that the system
# refuses. Memory of one operator new may be given to the operator delete of another, see limited_memory.cpp.
set(options LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/../lsan.supp
            ASAN_OPTIONS=allocator_may_return_null=1:max_allocation_size_mb=2048:alloc_dealloc_mismatch=0)
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${SCRATCH}" -G "${GENERATOR}" -D
    "CMAKE_CXX_COMPILER=${COMPILER}" -D CMAKE_BUILD_TYPE=None -D CMAKE_UNITY_BUILD=ON -D
    CMAKE_UNITY_BUILD_BATCH_SIZE=0 -D "TESSERA_BUILD=${BUILD}" -D "LibTorch_ROOT=${LIBTORCH}" -D
    "TesseraArrow_ROOT=${ARROW}")
run("${CMAKE_COMMAND}" --build "${SCRATCH}")
set(fuzzers reader_fuzz)
if(ARROW)
  list(APPEND fuzzers source_fuzz)
endif()
foreach(fuzzer IN LISTS fuzzers)
  file(MAKE_DIRECTORY "${SCRATCH}/corpus/${fuzzer}")
  run("${CMAKE_COMMAND}" -E env ${options} "${SCRATCH}/${fuzzer}" "-seed=${SEED}" "-max_total_time=${SECONDS}" -max_len=4096
      -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=1000000 -print_final_stats=1
      "-artifact_prefix=${SCRATCH}/" "${SCRATCH}/corpus/${fuzzer}" "${CMAKE_CURRENT_LIST_DIR}/seeds")
endforeach()
