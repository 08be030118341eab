# Fails if a folder includes headers of a higher layer: cmake -D ROOT=<repository> -P check_layering.cmake
#
# The folders of the core are layers. A layer may include its own headers and those of the layers before it in `core`
# below. Layer NAME is the folder src/NAME or, for optim, serialization and layers, the folder NAME. Its public headers
# are in include/tessera/NAME.
#
# A package may include the core, itself, and the packages that `used_by_<package>` names, but of their private headers
# only those of the lists `internal`. The dense layers are a package, too. Its folders are layers/dense and
# include/tessera/layers/dense, and it may include all headers of the core. Nothing else includes a package, but for
# examples, tests and the header tessera/tessera.h, which is generated.
# In packages/export/src, the folders torchscript/ and pt2/ may include trace/, but nothing else includes one of them.
#
# It also fails if no source file has the name of a public header that declares functions, if JSON is parsed
# outside of src/common/json_text.cpp, which limits its depth and size, and if a library calls torch::save().

cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "expected -D ROOT=<repository>, but got '${ROOT}'")
endif()

file(REAL_PATH "${ROOT}" ROOT)

set(core kernels common optim tables features engine serialization layers)
set(packages dense formats data distributed models export training search serving)
set(used_by_models dense)
# A package in packages/ includes public headers of others, and only these private ones: those of the first list, and
# those of the list with its name. Add none without need, because each ties a package to code that users can't see.
set(internal layers/mode_guard.h serialization/mapped_file.h src/common/atomic_file.h src/common/check.h
    src/common/checksum.h src/common/files.h src/common/names.h src/common/parallel.h src/common/random_key.h
    src/common/rank_group.h src/common/tensor_text.h src/common/text.h src/engine/embedding_state.h
    src/tables/key_table_rows.h)
set(internal_distributed optim/row_update.h src/common/active_kernels.h src/common/step_memory.h
    src/engine/finite_gradients.h src/engine/table_store.h src/kernels/row_sort.h)
set(internal_models layers/dense/joined_inputs.h layers/dense/row_blocks.h layers/initial_parameter.h
    optim/moving_average.h src/common/available_memory.h src/common/step_memory.h)
set(internal_export packages/formats/src/tensor_bytes.h src/engine/forward_interception.h src/engine/lookup.h
    src/features/batch.h src/features/output_shapes.h src/tables/combiner_operators.h)
set(internal_training optim/row_update.h serialization/checkpoint_reader.h serialization/checkpoint_writer.h
    serialization/file_lock.h src/common/checked_archive.h src/engine/finite_gradients.h src/engine/sampled_rows.h)
set(internal_search packages/data/src/column_values.h packages/data/src/column_view.h src/common/active_kernels.h
    src/kernels/kernels.h src/kernels/prefetch.h)
set(internal_serving packages/data/src/column_view.h packages/data/src/pipeline_core.h
    packages/export/src/trace/visit_weights.h packages/search/src/given_items.h packages/search/src/scan/item_attributes.h
    packages/search/src/scan/item_catalogue.h packages/search/src/scan/row_scan.h
    serialization/disk.h serialization/file_lock.h src/common/active_kernels.h src/features/id_rule.h src/tables/key_partitions.h)
set(used_by_export formats)
set(used_by_search formats data training)
set(used_by_serving data training export search)

# Sets `result` to the layer or package of a path in the repository, "programs" for examples and tests, "none" for a
# folder that is neither, or to nothing for the path of another project.
function(place_of path result)
  string(REGEX REPLACE "^include/" "" path "${path}")
  set(place "")
  if(path MATCHES "^(examples|tests)/|^packages/[a-z]+/tests/|^tessera/tessera\\.h$")
    set(place programs)
  elseif(path MATCHES "^(tessera/)?layers/dense/")
    set(place dense)
  elseif(path MATCHES "^(src|tessera|packages)/([a-z]+)/|^(optim|serialization|layers)/")
    set(place "${CMAKE_MATCH_2}${CMAKE_MATCH_3}")
    if(NOT place IN_LIST core AND NOT place IN_LIST packages)
      set(place none)
    endif()
  endif()
  set(${result} "${place}" PARENT_SCOPE)
endfunction()

# Sets `result` to ON if code in `from` may include headers of `to`.
function(may_include from to result)
  set(${result} ON PARENT_SCOPE)
  if(from STREQUAL programs OR from STREQUAL to OR to STREQUAL "")
    return()
  elseif(to IN_LIST core AND from IN_LIST packages)
    return()
  elseif(to IN_LIST core)
    list(FIND core ${from} below)
    list(FIND core ${to} above)
    if(above LESS below)
      return()
    endif()
  elseif(to IN_LIST used_by_${from})
    return()
  endif()
  set(${result} OFF PARENT_SCOPE)
endfunction()

set(violations "")
macro(complain problem)
  string(APPEND violations "${file}:${number}: ${problem}\n")
endmacro()

function(check_include file number included)
  place_of("${file}" from)
  if(from STREQUAL none)
    complain("stands in a folder that is no layer and no package. Add the folder to check_layering.cmake.")
    set(violations "${violations}" PARENT_SCOPE)
    return()
  endif()
  # The compiler first looks for a path relative to the including file.
  cmake_path(GET file PARENT_PATH folder)
  if(EXISTS "${ROOT}/${folder}/${included}")
    cmake_path(SET included NORMALIZE "${folder}/${included}")
  endif()
  place_of("${included}" to)
  may_include("${from}" "${to}" is_allowed)
  if(NOT is_allowed)
    complain("includes ${included}, which belongs to ${to}, and ${from} may not use it. Move what is needed from it to\
 ${from} or further down, or this code to ${to}.")
  endif()
  if(file MATCHES "^packages/export/src/(trace|torchscript|pt2)/")
    set(own "${CMAKE_MATCH_1}")
    if(included MATCHES "^packages/export/src/(torchscript|pt2)/" AND NOT CMAKE_MATCH_1 STREQUAL own)
      complain("includes ${included}, and ${own}/ may include only trace/ and itself. Move what both formats need to trace/.")
    endif()
  endif()
  if(file MATCHES "^packages/" AND from IN_LIST packages AND NOT to STREQUAL "" AND NOT from STREQUAL to
     AND NOT included MATCHES "^tessera/" AND NOT included IN_LIST internal AND NOT included IN_LIST internal_${from})
    complain("includes ${included}, a private header that packages may not use. Include a public header, or move what is needed to where it belongs. The lists `internal` of check_layering.cmake have the private headers that they may use.")
  endif()
  if(file MATCHES "^packages/serving/(src/(format|reader|server)/|include/tessera/serving/(export|pipeline|reader|server|tessera_serving)\\.h)|^packages/search/src/scan/"
     AND included MATCHES "^(ATen|c10|caffe2|torch)/")
    complain("includes ${included} of LibTorch in a library that must do without it.")
  endif()
  if((from STREQUAL kernels OR file MATCHES "^layers/dense/kernels/") AND included MATCHES "^(ATen|c10|caffe2|torch)/")
    complain("includes ${included} of LibTorch in a kernel. Pass raw pointers and sizes in instead.")
  endif()
  if(NOT from STREQUAL programs AND included MATCHES "^torch/(torch|all)\\.h$")
    complain("includes ${included}, which takes a minute to compile. Include the headers that are\
 used, e.g. ATen/core/Tensor.h, ATen/ops/<operator>.h, torch/nn/module.h.")
  endif()
  if(file MATCHES "^examples/my_" AND NOT included MATCHES "^(tessera/.*|[a-z_]+)$")
    complain("includes ${included} in a program that readers copy. Include only Tessera and the standard library.")
  endif()
  if(file MATCHES "(^|/)include/" AND included MATCHES "^fmt/")
    complain("includes ${included} in a public header, where a user's fmt may be another version.\
 Format in a source file.")
  endif()
  set(violations "${violations}" PARENT_SCOPE)
endfunction()

function(check_json file number line)
  if(NOT file MATCHES "^src/common/json_text.cpp$|^packages/[a-z]+/tests/" AND
     line MATCHES "[Jj]son::(parse|accept|sax_parse|from_[a-z]+)[ \t]*\\(|>>[ \t]*[A-Za-z_.]*[Jj]son")
    complain("parses JSON. Call parse_json(), load_json() or for_each_json_entry() instead, which limit its\
 depth and size and refuse a key that is there twice.")
    set(violations "${violations}" PARENT_SCOPE)
  endif()
endfunction()

# torch::save() ends the program if it can't write.
function(check_save file number line)
  if(line MATCHES "torch::save\\(" AND NOT line MATCHES "^ *//" AND NOT file MATCHES "^examples/|^packages/[a-z]+/tests/|/save_to_file\\.(h|cpp)$")
    complain("calls torch::save(), which ends the program on a full disk. Write with AtomicFile::write_by().")
    set(violations "${violations}" PARENT_SCOPE)
  endif()
endfunction()

# `text` is the whole header.
function(check_source file text)
  if(NOT file MATCHES "^(packages/[a-z]+/)?include/tessera/(.*)\\.h$")
    return()
  endif()
  set(package "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  cmake_path(GET name FILENAME stem)
  cmake_path(GET name PARENT_PATH folder)
  if(package)
    file(GLOB sources "${ROOT}/${package}src/${stem}.cpp" "${ROOT}/${package}src/*/${stem}.cpp")
  else()
    file(GLOB sources "${ROOT}/src/${name}.cpp" "${ROOT}/${name}.cpp" "${ROOT}/src/${folder}/*/${stem}.cpp")
  endif()
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
  "${ROOT}/layers/*.h" "${ROOT}/layers/*.cpp" "${ROOT}/packages/*.h" "${ROOT}/packages/*.cpp"
  "${ROOT}/examples/*.h" "${ROOT}/examples/*.cpp")

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
message(STATUS "${num_files} files include only what they may use")
