# Fails if a folder includes headers of a higher layer: cmake -D ROOT=<repository> -P check_layering.cmake
#
# Folders are layers. A layer may include its own headers and those of the layers before it in `layers` below.
# Layer NAME is the folder src/NAME or, for optim, serialization and layers, the folder NAME. Its public headers
# are in include/tessera/NAME. The umbrella header tessera/tessera.h belongs to examples and tests.
#
# It also fails if no source file has the name of a public header that declares functions, if JSON is parsed
# outside of src/common/json_text.cpp, which limits its depth and size, and if a library calls torch::save().

cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "expected -D ROOT=<repository>, but got '${ROOT}'")
endif()

file(REAL_PATH "${ROOT}" ROOT)

set(layers kernels common optim tables features engine distributed data serialization layers layers/training
    "examples, tests")

# Sets `result` to the position in `layers` of a path in the repository, or to nothing for the path of another
# project.
function(layer_of path result)
  string(REGEX REPLACE "^include/" "" path "${path}")
  set(layer "")
  if(path MATCHES "^(examples|tests)/|^tessera/tessera\\.h$")
    list(LENGTH layers layer)
    math(EXPR layer "${layer} - 1")
  elseif(path MATCHES "^(tessera/)?layers/training/")
    list(FIND layers "layers/training" layer)
  elseif(path MATCHES "^(src|tessera)/([a-z]+)/|^(optim|serialization|layers)/")
    set(name "${CMAKE_MATCH_2}${CMAKE_MATCH_3}")
    list(FIND layers "${name}" layer)
  endif()
  set(${result} "${layer}" PARENT_SCOPE)
endfunction()

list(LENGTH layers last)
math(EXPR last "${last} - 1")

set(violations "")
macro(complain problem)
  string(APPEND violations "${file}:${number}: ${problem}\n")
endmacro()

function(check_include file number included)
  layer_of("${file}" from)
  if(from EQUAL -1)
    complain("stands in a folder that is no layer. Add the folder to `layers` in check_layering.cmake.")
  endif()
  # The compiler first looks for a path relative to the including file.
  cmake_path(GET file PARENT_PATH folder)
  if(EXISTS "${ROOT}/${folder}/${included}")
    cmake_path(SET included NORMALIZE "${folder}/${included}")
  endif()
  layer_of("${included}" to)

  if(to AND to GREATER from)
    list(GET layers ${from} from_name)
    list(GET layers ${to} to_name)
    complain("includes ${included}, which belongs to ${to_name}, above ${from_name}. Move what is\
 needed from it to ${from_name} or further down, or this code to ${to_name}.")
  endif()
  if(from EQUAL 0 AND included MATCHES "^(ATen|c10|caffe2|torch)/")
    complain("includes ${included} of LibTorch in a kernel. Pass raw pointers and sizes in instead.")
  endif()
  if(from LESS last AND included MATCHES "^torch/(torch|all)\\.h$")
    complain("includes ${included}, which takes a minute to compile. Include the headers that are\
 used, e.g. ATen/core/Tensor.h, ATen/ops/<operator>.h, torch/nn/module.h.")
  endif()
  if(file MATCHES "^examples/my_" AND NOT included MATCHES "^(tessera/.*|[a-z_]+)$")
    complain("includes ${included} in a program that readers copy. Include only Tessera and the standard library.")
  endif()
  if(file MATCHES "^include/" AND included MATCHES "^fmt/")
    complain("includes ${included} in a public header, where a user's fmt may be another version.\
 Format in a source file.")
  endif()
  set(violations "${violations}" PARENT_SCOPE)
endfunction()

function(check_json file number line)
  if(NOT file STREQUAL "src/common/json_text.cpp" AND
     line MATCHES "[Jj]son::(parse|accept|sax_parse|from_[a-z]+)[ \t]*\\(|>>[ \t]*[A-Za-z_.]*[Jj]son")
    complain("parses JSON. Call parse_json(), load_json() or for_each_json_entry() instead, which limit its\
 depth and size and refuse a key that is there twice.")
    set(violations "${violations}" PARENT_SCOPE)
  endif()
endfunction()

# torch::save() ends the program if it can't write.
function(check_save file number line)
  if(line MATCHES "torch::save\\(" AND NOT line MATCHES "^ *//" AND NOT file MATCHES "^examples/|/save_to_file\\.(h|cpp)$")
    complain("calls torch::save(), which ends the program on a full disk. Write with AtomicFile::write_by().")
    set(violations "${violations}" PARENT_SCOPE)
  endif()
endfunction()

# `text` is the whole header.
function(check_source file text)
  if(NOT file MATCHES "^include/tessera/(.*)\\.h$" OR file STREQUAL "include/tessera/tessera.h")
    return()
  endif()
  set(name "${CMAKE_MATCH_1}")
  cmake_path(GET name FILENAME stem)
  cmake_path(GET name PARENT_PATH folder)
  file(GLOB sources "${ROOT}/src/${name}.cpp" "${ROOT}/${name}.cpp" "${ROOT}/src/${folder}/*/${stem}.cpp")
  string(REGEX REPLACE "\nstatic_assert[^;]*;" "" text "${text}")
  # This matches a declaration without a body at the beginning of a line.
  if(NOT sources AND text MATCHES "\n[A-Za-z][^\n;{}=/]*\\([^;{}]*\\)( const)?;\n")
    set(number 1)
    complain("declares functions, but there is no source file ${stem}.cpp. Give both one name.")
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
  check_source("${file}" "${text}")
  # Lines become list elements, so characters with a meaning in lists are removed.
  string(REGEX REPLACE "[][;\\]" " " text "${text}")
  string(REPLACE "\n" ";" lines "${text}")
  set(number 0)
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]")
      check_include("${file}" ${number} "${CMAKE_MATCH_1}")
    endif()
    check_json("${file}" ${number} "${line}")
    check_save("${file}" ${number} "${line}")
  endforeach()
endforeach()

list(LENGTH files num_files)
if(num_files EQUAL 0)
  message(FATAL_ERROR "expected sources under ${ROOT}, but found none. Give the repository as ROOT.")
endif()
if(violations)
  message(FATAL_ERROR "${violations}")
endif()
message(STATUS "${num_files} files include only what stands below them")
