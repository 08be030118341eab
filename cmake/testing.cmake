# Functions that make the tests of the core, in tests/, and of the packages, in packages/NAME/tests/. Each of these
# folders includes this file.

# Tests must compile fast, but need not run fast. Debug builds keep their own optimization level.
add_compile_options($<$<CONFIG:Release>:-O0>)
set(TESSERA_UNITY_SIZE 32) # their compiler needs less memory than that of the libraries
set(tests "${PROJECT_SOURCE_DIR}/tests")
find_package(Python3 COMPONENTS Interpreter)
# ./run test installs Debian's packages for Debian's Python.
find_program(TESSERA_DEBIAN_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
set(timeout 300) # seconds
if(CMAKE_CROSSCOMPILING_EMULATOR)
  set(timeout 1800) # emulated programs are slow
endif()

# tessera_test(NAME [HIGH_LEVEL] [SOURCES file...] [EXCEPT file...] [LABELS label...] [NOT_EMULATED test...])
#
# Adds the GoogleTest binary NAME from the sources, or else from all *_test.cpp of the folder but those of EXCEPT. ctest
# has one entry for each file. A binary has many files, because linking and loading LibTorch takes the most time. The
# sanitizer preset leaves out HIGH_LEVEL suites, which handle no memory of their own. An emulator of another processor
# leaves out the tests of NOT_EMULATED.
function(tessera_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "HIGH_LEVEL" "" "SOURCES;EXCEPT;LABELS;NOT_EMULATED")
  if(arg_HIGH_LEVEL AND NOT TESSERA_TEST_HIGH_LEVEL)
    return()
  endif()
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" *_test.cpp)
    list(REMOVE_ITEM arg_SOURCES ${arg_EXCEPT})
  endif()
  tessera_unity_sources(sources ${name} "${tests}/seed_each_test.cpp" ${arg_SOURCES})
  add_executable(${name} ${sources} "${tests}/test_files.cpp")
  set_source_files_properties(
    "${tests}/test_files.cpp"
    PROPERTIES COMPILE_DEFINITIONS TESSERA_TESTS_DIR="${tests}" SKIP_PRECOMPILE_HEADERS ON)
  tessera_configure(${name})
  tessera_use_headers(${name} test_headers)
  target_link_libraries(
    ${name} PRIVATE tessera::tessera tessera_kernels GTest::gtest_main)
  # Tests are listed when ctest starts, with the environment of the test preset.
  set(list "${CMAKE_CURRENT_BINARY_DIR}/${name}_list.cmake")
  list(JOIN arg_NOT_EMULATED ":" left_out)
  file(
    GENERATE
    OUTPUT "${list}"
    CONTENT "include(\"${tests}/discover_tests.cmake\")
discover_tests(\"$<TARGET_FILE:${name}>\" ${timeout} \"${arg_LABELS}\" \"${CMAKE_CROSSCOMPILING_EMULATOR}\" \"${left_out}\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${list}")
endfunction()

# tessera_unavailable_test(NAME SOURCE): tests a function that stands for one of a library that was not found.
function(tessera_unavailable_test name source)
  add_executable(${name} ${name}.cpp "${source}")
  tessera_configure(${name})
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" DIRECTORY)
  target_include_directories(${name} PRIVATE "${folder}/include")
  target_link_libraries(${name} PRIVATE tessera_common GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# Runs a program as ranks of Gloo.
set(launch ${Python3_EXECUTABLE} -B "${PROJECT_SOURCE_DIR}/packages/distributed/src/launch.py" --ranks)

# tessera_rank_test(NAME RANKS...)
#
# Runs the program NAME as ranks of Gloo, once for each number of ranks. There may be more ranks than cores, so each has
# one thread.
function(tessera_rank_test name)
  foreach(ranks IN LISTS ARGN)
    set(test ${name}_on_${ranks}_ranks)
    add_test(NAME ${test} COMMAND ${launch} ${ranks} -- $<TARGET_FILE:${name}>)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1 PROCESSORS ${ranks} TIMEOUT 300 LABELS ranks)
  endforeach()
endfunction()

# tessera_mpi_test(NAME RANKS...)
#
# Runs the program NAME under mpirun, once for each number of ranks.
function(tessera_mpi_test name)
  foreach(ranks IN LISTS ARGN)
    set(test ${name}_on_${ranks}_ranks_of_mpi)
    add_test(NAME ${test} COMMAND ${TESSERA_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}>)
    set_tests_properties(
      ${test} PROPERTIES ENVIRONMENT "${TESSERA_MPI_ENVIRONMENT}" PROCESSORS ${ranks} TIMEOUT 300 LABELS "mpi;ranks")
  endforeach()
endfunction()
