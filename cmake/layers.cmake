# Functions that make the targets of this project.

# Sets what all targets share: the language, the warnings, and the repository root as the include folder of
# private headers ("src/engine/lookup.h", "optim/row_update.h").
function(tessera_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror=switch $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
  # GCC takes the sources in a unity build's file for headers, and warns about unnamed namespaces in headers.
  target_compile_options(
    ${target} PRIVATE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()

# tessera_layer(NAME SOURCES file... [PUBLIC target...] [PRIVATE target...])
#
# Adds the static library tessera_NAME. PUBLIC has the targets that its public headers include, and PRIVATE
# those that only its sources use. An installed Tessera does not need targets in $<BUILD_INTERFACE:...>.
function(tessera_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  set(target tessera_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  tessera_configure(${target})
  target_include_directories(
    ${target} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                     "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  if(TESSERA_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY TESSERA_LAYERS ${target}) # install.cmake installs them
endfunction()
