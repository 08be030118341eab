# Runs the port of vcpkg, without vcpkg: these functions stand for vcpkg's, and configure like them, but build nothing.
# PORT is the folder of the port, and FEATURES are those that the user asked for.
cmake_minimum_required(VERSION 3.25)

function(vcpkg_check_linkage)
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" OUT_FEATURE_OPTIONS FEATURES)
  set(options "")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    set(value OFF)
    if(feature IN_LIST FEATURES)
      set(value ON)
    endif()
    list(APPEND options "-D${option}=${value}")
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vcpkg_cmake_configure does not know '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${SCRATCH}/build" -G "${GENERATOR}" -D CMAKE_BUILD_TYPE=Release
      -D CMAKE_INSTALL_LIBDIR=lib ${arg_OPTIONS}
    ERROR_VARIABLE errors
    ECHO_ERROR_VARIABLE
    COMMAND_ERROR_IS_FATAL ANY)
  if(errors MATCHES "not used by the project") # vcpkg makes this an error, too
    message(FATAL_ERROR "expected options that Tessera has, but got:\n${errors}")
  endif()
endfunction()

function(vcpkg_cmake_install)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  file(READ "${SCRATCH}/build/cmake_install.cmake" text)
  string(FIND "${text}" "/${arg_CONFIG_PATH}\"" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "expected that tesseraConfig.cmake is installed into ${arg_CONFIG_PATH}")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  foreach(file IN LISTS arg_FILE_LIST)
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "${file} does not exist")
    endif()
  endforeach()
endfunction()

set(CURRENT_PACKAGES_DIR "${SCRATCH}/packages")
include("${PORT}/portfile.cmake")
