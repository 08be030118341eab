# Finds LibTorch's CPU libraries in an unpacked LibTorch archive, in the torch package of a Python
# installation, or in .deps, where `./run setup` puts them. LibTorch's own find_package(Torch) requires a
# CUDA toolkit if LibTorch was built with CUDA. The two libraries that are used here need none.
#
#   LibTorch::LibTorch                   headers, libtorch_cpu and libc10; needs C++20, as the headers do
#   LibTorch_ROOT_DIR, LibTorch_VERSION  the folder that was found, and its version
#   LibTorch_PROBLEM                     what to do if LibTorch was not found, or has another version
#
# It searches LibTorch_ROOT, then CMAKE_PREFIX_PATH (first the variables, then the environment), then
# LibTorch_FALLBACK_DIR. A folder may be LibTorch itself, its share/cmake, or a site-packages folder.
# Nothing is cached, so every configure step searches again.

function(_libtorch_find_root result)
  set(folders "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}" ${CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
  list(APPEND folders ${from_environment} "${LibTorch_FALLBACK_DIR}")
  list(REMOVE_ITEM folders "")
  foreach(folder IN LISTS folders)
    string(REGEX REPLACE "/share/cmake(/Torch)?/*$" "" folder "${folder}")
    foreach(root IN ITEMS "${folder}" "${folder}/torch")
      if(EXISTS "${root}/include/ATen/core/Tensor.h" AND EXISTS "${root}/lib/libtorch_cpu.so"
         AND EXISTS "${root}/lib/libc10.so")
        file(REAL_PATH "${root}" root)
        set(${result} "${root}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  list(JOIN folders "\n    " folders)
  set(LibTorch_PROBLEM
      "expected a folder with include/ATen and lib/libtorch_cpu.so, but none of these is one:\n\
    ${folders}\n  Run ./run setup, which downloads LibTorch, or configure with\
 -DCMAKE_PREFIX_PATH=<the libtorch or site-packages/torch folder>."
      PARENT_SCOPE)
endfunction()

function(_libtorch_read_version root result)
  # Up to version 2.8 the numbers are in the second header, and later in the first.
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(READ "${root}/include/${header}" text)
      if(text MATCHES "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+).*TORCH_VERSION_PATCH ([0-9]+)")
        set(${result} "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

unset(LibTorch_ROOT_DIR)
unset(LibTorch_VERSION)
unset(LibTorch_PROBLEM)
_libtorch_find_root(LibTorch_ROOT_DIR)
if(LibTorch_ROOT_DIR)
  _libtorch_read_version("${LibTorch_ROOT_DIR}" LibTorch_VERSION)
  set(LibTorch_PROBLEM "found in ${LibTorch_ROOT_DIR}. Give another one with -DCMAKE_PREFIX_PATH=<folder>.")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR
  VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "${LibTorch_PROBLEM}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  foreach(_libtorch_library IN ITEMS c10 torch_cpu)
    add_library(LibTorch::${_libtorch_library} SHARED IMPORTED)
    set_target_properties(
      LibTorch::${_libtorch_library}
      PROPERTIES IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/lib${_libtorch_library}.so"
                 INTERFACE_INCLUDE_DIRECTORIES
                 "${LibTorch_ROOT_DIR}/include;${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  endforeach()
  # libtorch.so is left out, because it only links libtorch_cpu and libtorch_cuda.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::torch_cpu LibTorch::c10)
  target_compile_features(LibTorch::LibTorch INTERFACE cxx_std_20)
endif()
