# Compiles each public header on its own, without other includes before it.

# Sets `result` to ON if the header, "tessera/...", includes torch/types.h, itself or through another header.
function(tessera_includes_torch header result)
  file(STRINGS "${PROJECT_SOURCE_DIR}/include/${header}" lines REGEX
       "^#include <(tessera/|torch/(nn/(cloneable|module|modules/container|pimpl)|serialize|torch\\.h))")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include <(.*)>.*" "\\1" included "${line}")
    set(found ON)
    if(included MATCHES "^tessera/")
      tessera_includes_torch("${included}" found)
    endif()
    if(found)
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} OFF PARENT_SCOPE)
endfunction()

# tessera_compile_headers(NAME): adds object libraries with one source per public header, which includes it twice.
# torch/types.h takes 14 s each time, so the headers that include it share a precompiled header. That hides no
# missing include, because it contains nothing else.
function(tessera_compile_headers name)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
       "${PROJECT_SOURCE_DIR}/include/*.h")
  foreach(header IN LISTS headers)
    string(MAKE_C_IDENTIFIER "${header}" source)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}/${source}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n#include <${header}>\n")
    tessera_includes_torch("${header}" with_torch)
    if(with_torch)
      list(APPEND torch_sources "${source}")
    else()
      list(APPEND plain_sources "${source}")
    endif()
  endforeach()
  add_library(${name} OBJECT ${plain_sources})
  add_library(${name}_with_torch OBJECT ${torch_sources})
  target_precompile_headers(${name}_with_torch PRIVATE <torch/types.h>)
  foreach(target ${name} ${name}_with_torch)
    tessera_configure(${target})
    target_compile_options(${target} PRIVATE -O0)
    target_link_libraries(${target} PRIVATE tessera::tessera)
  endforeach()
endfunction()
