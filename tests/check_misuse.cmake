# Fails unless the compiler refuses each program of tests/misuse with a short, readable error:
# cmake -D ROOT=<repository> -D COMPILER=<c++> -D "FLAGS=<options>" -D SCRATCH=<folder> [-D ONLY=<regex>]
#       -P check_misuse.cmake
#
# A program has a line `// expects: <regex>`, which the errors must match. Their text may have kMaxLines lines.
# correct.cpp must compile, so that the other errors are not those of a wrong include path.

cmake_minimum_required(VERSION 3.25)

set(kMaxLines 20)

file(GLOB programs "${ROOT}/tests/misuse/*.cpp")
if(ONLY)
  list(FILTER programs INCLUDE REGEX "${ONLY}")
endif()
if(NOT programs)
  message(FATAL_ERROR "expected programs in ${ROOT}/tests/misuse")
endif()

# All headers that the programs include are compiled once, because LibTorch's take most of the time.
set(includes "")
foreach(program IN LISTS programs)
  file(STRINGS "${program}" lines REGEX "^#include <")
  list(APPEND includes ${lines})
endforeach()
list(SORT includes)
list(REMOVE_DUPLICATES includes)
list(JOIN includes "\n" includes)
file(WRITE "${SCRATCH}/headers.h" "#pragma once\n${includes}\n")
set(compile "${CMAKE_COMMAND}" -E env LC_ALL=C "${COMPILER}" -std=c++20 -w "-I${ROOT}/include" "-I${ROOT}" ${FLAGS})
if(COMPILER MATCHES "clang")
  set(precompiled "${SCRATCH}/headers.pch")
  set(use_headers -include-pch "${precompiled}")
else()
  set(precompiled "${SCRATCH}/headers.h.gch") # GCC looks for this name
  set(use_headers -include "${SCRATCH}/headers.h")
endif()
execute_process(COMMAND ${compile} -x c++-header "${SCRATCH}/headers.h" -o "${precompiled}" COMMAND_ERROR_IS_FATAL ANY)

set(problems "")
foreach(program IN LISTS programs)
  get_filename_component(name "${program}" NAME_WE)
  file(READ "${program}" code)
  execute_process(
    COMMAND ${compile} -fsyntax-only ${use_headers} "${program}"
    RESULT_VARIABLE status
    ERROR_VARIABLE text)
  if(name STREQUAL "correct")
    if(NOT status EQUAL 0)
      string(APPEND problems "${name}: expected it to compile, but:\n${text}\n")
    endif()
    continue()
  endif()
  if(NOT code MATCHES "// expects: ([^\n]+)")
    message(FATAL_ERROR "${name}: expected a line '// expects: <regex>'")
  endif()
  set(expected "${CMAKE_MATCH_1}")
  string(REGEX MATCHALL "\n" lines "${text}")
  list(LENGTH lines count)
  message(STATUS "${name}: ${count} lines")
  if(status EQUAL 0)
    string(APPEND problems "${name}: expected an error, but it compiles\n")
  elseif(NOT text MATCHES "${expected}")
    string(APPEND problems "${name}: expected an error with '${expected}', but:\n${text}\n")
  elseif(count GREATER kMaxLines)
    string(APPEND problems "${name}: expected at most ${kMaxLines} lines of errors, but got ${count}:\n${text}\n")
  endif()
endforeach()
file(REMOVE_RECURSE "${SCRATCH}") # half a gigabyte
if(problems)
  message(FATAL_ERROR "${problems}")
endif()
