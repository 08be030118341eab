# How a target of this project is made.

# What all of them share: the language, the warnings, the repository root for private headers
# ("src/engine.h", "optim/row_rule.h").
function(tessera_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror=switch $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
  # GCC takes the sources inside a unity build's file for headers, where unnamed namespaces are a mistake.
  target_compile_options(
    ${target} PRIVATE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()

# tessera_layer(NAME SOURCES file... [PUBLIC target...] [PRIVATE target...])
#
# The static library tessera_NAME. PUBLIC is what its public headers include, PRIVATE what only its
# sources use; $<BUILD_INTERFACE:...> around what an installed Tessera does without.
function(tessera_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  set(target tessera_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  tessera_configure(${target})
  target_include_directories(
    ${target} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                     "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY TESSERA_LAYERS ${target}) # all of them are installed
endfunction()
