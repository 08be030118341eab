# Finds Arrow C++ with Parquet: in a folder with include/arrow, such as that of the pyarrow package of a Python
# installation, as CMake packages, or in .deps, where `./run setup` puts them.
#
#   TesseraArrow::TesseraArrow                   headers, libarrow and libparquet
#   TesseraArrow_ROOT_DIR, TesseraArrow_VERSION  the folder that was found, and its version
#
# It searches TesseraArrow_ROOT, CMAKE_PREFIX_PATH (first the variables, then the environment), the packages Arrow and
# Parquet, and then TesseraArrow_FALLBACK_DIR. A folder may be pyarrow itself or a site-packages folder. Nothing is
# cached, so every configure step searches again.

# Sets `result` to the first library of this name, "lib/libarrow.so.2600" or "libarrow.so".
function(_tessera_arrow_library root name result)
  file(GLOB libraries "${root}/lib/lib${name}.so*" "${root}/lib${name}.so*")
  list(SORT libraries)
  if(libraries)
    list(GET libraries 0 library)
    file(REAL_PATH "${library}" library)
    set(${result} "${library}" PARENT_SCOPE)
  endif()
endfunction()

function(_tessera_arrow_find_root folders)
  foreach(folder IN LISTS folders)
    foreach(root IN ITEMS "${folder}" "${folder}/pyarrow")
      if(EXISTS "${root}/include/arrow/csv/parser.h" AND EXISTS "${root}/include/parquet/arrow/reader.h")
        file(REAL_PATH "${root}" root)
        unset(arrow)
        unset(parquet)
        _tessera_arrow_library("${root}" arrow arrow)
        _tessera_arrow_library("${root}" parquet parquet)
        if(arrow AND parquet)
          set(TesseraArrow_ROOT_DIR "${root}" PARENT_SCOPE)
          set(_tessera_arrow_arrow "${arrow}" PARENT_SCOPE)
          set(_tessera_arrow_parquet "${parquet}" PARENT_SCOPE)
          return()
        endif()
      endif()
    endforeach()
  endforeach()
endfunction()

unset(TesseraArrow_ROOT_DIR)
unset(TesseraArrow_VERSION)
unset(_tessera_arrow_packages)
set(_tessera_arrow_folders "${TesseraArrow_ROOT}" "$ENV{TesseraArrow_ROOT}" ${CMAKE_PREFIX_PATH})
string(REPLACE ":" ";" _tessera_arrow_environment "$ENV{CMAKE_PREFIX_PATH}")
list(APPEND _tessera_arrow_folders ${_tessera_arrow_environment})
list(REMOVE_ITEM _tessera_arrow_folders "")
_tessera_arrow_find_root("${_tessera_arrow_folders}")
if(NOT TesseraArrow_ROOT_DIR)
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
  if(TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
    set(TesseraArrow_ROOT_DIR "${Arrow_DIR}")
    set(TesseraArrow_VERSION "${Arrow_VERSION}")
    set(_tessera_arrow_packages ON)
  else()
    _tessera_arrow_find_root("${TesseraArrow_FALLBACK_DIR}")
  endif()
endif()
if(TesseraArrow_ROOT_DIR AND NOT _tessera_arrow_packages)
  file(STRINGS "${TesseraArrow_ROOT_DIR}/include/arrow/util/config.h" _tessera_arrow_line
       REGEX "ARROW_VERSION_STRING")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" TesseraArrow_VERSION "${_tessera_arrow_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TesseraArrow
  REQUIRED_VARS TesseraArrow_ROOT_DIR
  VERSION_VAR TesseraArrow_VERSION
  REASON_FAILURE_MESSAGE
    "expected a folder with include/arrow, include/parquet and their libraries. Run ./run setup, which\
 downloads it, or configure with -DTesseraArrow_ROOT=<the pyarrow folder of a Python installation>.")

if(TesseraArrow_FOUND AND NOT TARGET TesseraArrow::TesseraArrow)
  add_library(TesseraArrow::TesseraArrow INTERFACE IMPORTED)
  if(_tessera_arrow_packages)
    target_link_libraries(TesseraArrow::TesseraArrow INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
  else()
    foreach(_tessera_arrow_name IN ITEMS arrow parquet)
      add_library(TesseraArrow::${_tessera_arrow_name} SHARED IMPORTED)
      set_target_properties(
        TesseraArrow::${_tessera_arrow_name}
        PROPERTIES IMPORTED_LOCATION "${_tessera_arrow_${_tessera_arrow_name}}"
                   INTERFACE_INCLUDE_DIRECTORIES "${TesseraArrow_ROOT_DIR}/include")
    endforeach()
    target_link_libraries(TesseraArrow::TesseraArrow INTERFACE TesseraArrow::parquet TesseraArrow::arrow)
  endif()
endif()
