# Functions that make the targets of this project.

# Sets what all targets share: the language, the warnings, and the repository root as the include folder of
# private headers ("src/engine/lookup.h", "optim/row_update.h").
function(tessera_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror=switch $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()

# tessera_precompile_headers(NAME FILE [target...])
#
# Adds the target NAME, which compiles the headers in FILE once. tessera_use_headers(TARGET NAME) lets TARGET use them.
# LibTorch's headers take longer to compile than what most sources add to them. Only headers of other projects are
# precompiled, so that a change of our own headers compiles only what includes them.
function(tessera_precompile_headers name file)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${name} OBJECT "${source}")
  tessera_configure(${name})
  target_link_libraries(${name} PRIVATE LibTorch::LibTorch nlohmann_json::nlohmann_json ${ARGN})
  # With brackets, CMake writes no absolute path, so that ccache finds the result for a clone in another folder.
  target_precompile_headers(${name} PRIVATE "<${file}>")
  tessera_share_flags(${name})
endfunction()

function(tessera_use_headers target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  tessera_share_flags(${target})
endfunction()

# GCC reads precompiled headers only with the flags that they were compiled with. By default, programs are compiled
# with -fPIE and libraries with -fPIC, and only some of them with OpenMP.
function(tessera_share_flags target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tessera_openmp>)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  # GCC takes the sources in a unity source for headers, and warns about unnamed namespaces in headers.
  target_compile_options(
    ${target} PRIVATE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${TESSERA_UNITY_BUILD}>>:-Wno-subobject-linkage>)
  # GCC's defaults are for computers with little memory. With these, it collects garbage less often.
  target_compile_options(
    ${target} PRIVATE
    "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-expand=200 --param ggc-min-heapsize=1000000>")
endfunction()

set(TESSERA_UNITY_SIZE 16) # with 32, the compiler needs 3 GB for the sources of layers/

# tessera_unity_sources(RESULT NAME FILE...)
#
# With TESSERA_UNITY_BUILD, sets RESULT to files that include up to TESSERA_UNITY_SIZE of the sources each, otherwise to
# the sources.
# CMake's own UNITY_BUILD writes absolute paths, with which ccache finds nothing for a clone in another folder.
function(tessera_unity_sources result name)
  if(NOT TESSERA_UNITY_BUILD OR NOT ARGN)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(unity_sources "")
  foreach(source IN LISTS ARGN)
    list(LENGTH includes count)
    if(count EQUAL TESSERA_UNITY_SIZE)
      tessera_write_unity_source()
    endif()
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    list(APPEND includes "#include \"${source}\"")
  endforeach()
  tessera_write_unity_source()
  set(${result} ${unity_sources} PARENT_SCOPE)
endfunction()

# Writes `includes` into a file, which it appends to `unity_sources`.
macro(tessera_write_unity_source)
  list(LENGTH unity_sources index)
  list(JOIN includes "\n" text)
  set(unity_source "${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${index}.cpp")
  file(CONFIGURE OUTPUT "${unity_source}" CONTENT "${text}\n" @ONLY)
  list(APPEND unity_sources "${unity_source}")
  set(includes "")
endmacro()

# tessera_layer(NAME [WITHOUT_LIBTORCH] [FOLDERS folder...] [EXCEPT file...] [SEPARATE file...] [PUBLIC target...]
#               [PRIVATE target...])
#
# Adds the static library tessera_NAME from the sources in the folders, but not those of EXCEPT. SEPARATE has sources
# that must be compiled one by one; they may be in other folders. PUBLIC has the targets that its public headers
# include, and PRIVATE those that only its sources use. An installed Tessera does not need targets in
# $<BUILD_INTERFACE:...>. The public headers are in include/ beside the CMakeLists.txt.
function(tessera_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WITHOUT_LIBTORCH" "" "FOLDERS;EXCEPT;SEPARATE;PUBLIC;PRIVATE")
  set(target tessera_${name})
  set(sources "")
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB found CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "${folder}/*.cpp")
    list(APPEND sources ${found})
  endforeach()
  foreach(source IN LISTS arg_EXCEPT arg_SEPARATE)
    if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
      message(FATAL_ERROR "[tessera] expected the file ${source} in ${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
    list(REMOVE_ITEM sources "${source}")
  endforeach()
  tessera_unity_sources(sources ${target} ${sources})
  add_library(${target} STATIC ${sources} ${arg_SEPARATE})
  tessera_configure(${target})
  target_include_directories(
    ${target} PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                     "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  if(arg_WITHOUT_LIBTORCH)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O3>)
  else()
    tessera_use_headers(${target} tessera_libtorch_headers)
  endif()
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY TESSERA_TARGETS_OF_${TESSERA_COMPONENT} ${target})
endfunction()

# tessera_choose_packages()
#
# Sets TESSERA_BUILT_PACKAGES to those of TESSERA_PACKAGES whose option is on.
function(tessera_choose_packages)
  set(chosen "")
  foreach(package IN LISTS TESSERA_PACKAGES)
    string(TOUPPER "TESSERA_BUILD_${package}" option)
    if(${option})
      list(APPEND chosen ${package})
    endif()
  endforeach()
  foreach(package IN LISTS chosen)
    foreach(used IN LISTS TESSERA_USED_BY_${package})
      if(NOT used IN_LIST chosen)
        string(TOUPPER "TESSERA_BUILD_${package}" option)
        string(TOUPPER "TESSERA_BUILD_${used}" used_option)
        message(FATAL_ERROR "[tessera] the package ${package} needs the package ${used}, but ${used_option} is OFF."
                            " Set it to ON, or ${option} to OFF.")
      endif()
    endforeach()
  endforeach()
  set(TESSERA_BUILT_PACKAGES ${chosen} PARENT_SCOPE)
endfunction()

# tessera_component(NAME)
#
# Adds the target tessera::NAME, which links all libraries of the core or of a package.
function(tessera_component name)
  get_property(targets DIRECTORY "${PROJECT_SOURCE_DIR}" PROPERTY TESSERA_TARGETS_OF_${name})
  add_library(tessera_package_${name} INTERFACE)
  add_library(tessera::${name} ALIAS tessera_package_${name})
  target_link_libraries(tessera_package_${name} INTERFACE ${targets})
  set_target_properties(tessera_package_${name} PROPERTIES EXPORT_NAME ${name}) # install.cmake exports it
endfunction()

# tessera_public_headers(RESULT) sets RESULT to the public headers of the core and of all packages that are built, as
# "tessera/...", and RESULT_FOLDERS to the folders that they are in.
function(tessera_public_headers result)
  set(folders include)
  foreach(package IN LISTS TESSERA_BUILT_PACKAGES)
    if(NOT package STREQUAL "dense") # its headers are in include/tessera/layers/dense
      list(APPEND folders packages/${package}/include)
    endif()
  endforeach()
  set(headers "")
  foreach(folder IN LISTS folders)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/${folder}"
         "${PROJECT_SOURCE_DIR}/${folder}/*.h")
    list(APPEND headers ${found})
  endforeach()
  if(NOT dense IN_LIST TESSERA_BUILT_PACKAGES)
    list(FILTER headers EXCLUDE REGEX "^tessera/layers/dense/")
  endif()
  set(${result} ${headers} PARENT_SCOPE)
  set(${result}_FOLDERS ${folders} PARENT_SCOPE)
endfunction()

# tessera_write_version_header(FILE) writes the header that has the version of this project.
function(tessera_write_version_header file)
  math(EXPR number "${PROJECT_VERSION_MAJOR} * 10000 + ${PROJECT_VERSION_MINOR} * 100 + ${PROJECT_VERSION_PATCH}")
  file(CONFIGURE OUTPUT "${file}" CONTENT "// SPDX-License-Identifier: Apache-2.0
#pragma once

// The version of these headers: 10000 * major + 100 * minor + patch, and as text.
#define TESSERA_VERSION @number@
#define TESSERA_VERSION_STRING \"@PROJECT_VERSION@\"
" @ONLY)
endfunction()

# tessera_write_umbrella_header(FILE)
#
# Writes the header that includes all public headers. Those of Gloo and MPI are left out, because they include
# LibTorch's headers of processes, which take long to compile, and a LibTorch may lack them.
function(tessera_write_umbrella_header file)
  tessera_public_headers(headers)
  list(FILTER headers EXCLUDE REGEX "/(gloo|mpi)_backend\\.h$")
  list(TRANSFORM headers REPLACE ".+" "#include <\\0>")
  list(JOIN headers "\n" includes)
  file(CONFIGURE OUTPUT "${file}" CONTENT "// SPDX-License-Identifier: Apache-2.0
#pragma once

// Includes all of Tessera that is built and LibTorch's umbrella header. That takes half a
// minute to compile.

@includes@
#include <tessera/version.h>
#include <torch/torch.h>
" @ONLY)
endfunction()

# tessera_without_test(TARGET...) leaves programs that no test runs out of "all", because they take long to compile.
# The target untested_programs builds them, and `./run` builds those that it needs.
function(tessera_without_test)
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(untested_programs ${ARGN})
endfunction()
