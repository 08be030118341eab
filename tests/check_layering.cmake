# Fails on an #include that points the wrong way: cmake -D ROOT=<repository> -P check_layering.cmake
#
#   src/kernels <- optim <- src <- src/data <- serialization <- layers <- layers/training <- examples, tests
#
# A folder includes only what is left of it. Public headers count with their folder:
# tessera/optim/ with optim, tessera/nest.h with src, the umbrella tessera/tessera.h with examples.
#
# And on JSON text that is parsed elsewhere than in optim/json_text.cpp, which knows the limits.

cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "expected -D ROOT=<repository>, but got '${ROOT}'")
endif()

file(REAL_PATH "${ROOT}" ROOT)

set(layers src/kernels optim src src/data serialization layers layers/training "examples, tests")

# The position in `layers` of a path in the repository, or nothing for a path of somebody else.
function(layer_of path result)
  string(REGEX REPLACE "^include/" "" path "${path}")
  set(layer "")
  if(path MATCHES "^src/kernels/")
    set(layer 0)
  elseif(path MATCHES "^(tessera/)?optim/")
    set(layer 1)
  elseif(path MATCHES "^(src|tessera)/data/")
    set(layer 3)
  elseif(path MATCHES "^(tessera/)?serialization/")
    set(layer 4)
  elseif(path MATCHES "^(tessera/)?layers/training/")
    set(layer 6)
  elseif(path MATCHES "^(tessera/)?layers/")
    set(layer 5)
  elseif(path MATCHES "^(examples|tests)/|^tessera/tessera\\.h$")
    set(layer 7)
  elseif(path MATCHES "^(src|tessera)/")
    set(layer 2)
  endif()
  set(${result} "${layer}" PARENT_SCOPE)
endfunction()

set(violations "")
macro(complain problem)
  string(APPEND violations "${file}:${number}: ${problem}\n")
endmacro()

function(check_include file number included)
  layer_of("${file}" from)
  # A path relative to the including file, as the compiler would take it first.
  cmake_path(GET file PARENT_PATH folder)
  if(EXISTS "${ROOT}/${folder}/${included}")
    cmake_path(SET included NORMALIZE "${folder}/${included}")
  endif()
  layer_of("${included}" to)

  if(to AND to GREATER from)
    list(GET layers ${from} from_name)
    list(GET layers ${to} to_name)
    complain("includes ${included}, which belongs to ${to_name}, right of ${from_name}. Move what is\
 needed from it to ${from_name} or further left, or this code to ${to_name}.")
  endif()
  if(from EQUAL 0 AND included MATCHES "^(ATen|c10|caffe2|torch)/")
    complain("includes ${included} of LibTorch in a kernel. Pass raw pointers and sizes in instead.")
  endif()
  if(from LESS 7 AND included MATCHES "^torch/(torch|all)\\.h$")
    complain("includes ${included}, which takes a minute to compile. Include the headers that are\
 used, e.g. ATen/core/Tensor.h, ATen/ops/<operator>.h, torch/nn/module.h.")
  endif()
  if(file MATCHES "^include/" AND included MATCHES "^fmt/")
    complain("includes ${included} in a public header, where a user's fmt may be another version.\
 Format in a source file.")
  endif()
  set(violations "${violations}" PARENT_SCOPE)
endfunction()

function(check_json file number line)
  if(NOT file STREQUAL "optim/json_text.cpp" AND
     line MATCHES "[Jj]son::(parse|accept|sax_parse|from_[a-z]+)[ \t]*\\(|>>[ \t]*[A-Za-z_.]*[Jj]son")
    complain("parses JSON. Call parse_json(), load_json() or for_each_json_entry() instead, which limit its\
 depth and size and refuse a key that is there twice.")
    set(violations "${violations}" PARENT_SCOPE)
  endif()
endfunction()

file(
  GLOB_RECURSE files
  RELATIVE "${ROOT}"
  "${ROOT}/include/*.h" "${ROOT}/src/*.h" "${ROOT}/src/*.cpp" "${ROOT}/optim/*.h"
  "${ROOT}/optim/*.cpp" "${ROOT}/serialization/*.h" "${ROOT}/serialization/*.cpp"
  "${ROOT}/layers/*.h" "${ROOT}/layers/*.cpp" "${ROOT}/examples/*.h" "${ROOT}/examples/*.cpp")

foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" text)
  # Lines become list elements, so what CMake reads in lists has to go.
  string(REGEX REPLACE "[][;\\]" " " text "${text}")
  string(REPLACE "\n" ";" lines "${text}")
  set(number 0)
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]")
      check_include("${file}" ${number} "${CMAKE_MATCH_1}")
    endif()
    check_json("${file}" ${number} "${line}")
  endforeach()
endforeach()

list(LENGTH files num_files)
if(num_files EQUAL 0)
  message(FATAL_ERROR "expected sources under ${ROOT}, but found none. Give the repository as ROOT.")
endif()
if(violations)
  message(FATAL_ERROR "${violations}")
endif()
message(STATUS "${num_files} files include only what is left of them")
