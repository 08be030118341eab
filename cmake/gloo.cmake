# Finds what the Gloo in LibTorch needs. Without it, Tessera is built without make_gloo_backend().
#
#   TESSERA_HAS_GLOO  whether the headers were found and LibTorch contains Gloo
#   tessera_gloo      the headers, which LibTorch's wheel lacks. Gloo's own library is not linked, because LibTorch
#                     contains another version. The headers of Debian's libgloo-dev (2022) serve nevertheless.
set(TESSERA_HAS_GLOO OFF)
if(TESSERA_WITH_GLOO AND TESSERA_HAS_C10D AND distributed IN_LIST TESSERA_BUILT_PACKAGES)
  find_path(TESSERA_GLOO_INCLUDE_DIR gloo/rendezvous/store.h)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES LibTorch::LibTorch)
  # The destructor of c10d::ProcessGroupGloo, whose header takes long to compile.
  check_cxx_source_compiles("extern \"C\" void _ZN4c10d16ProcessGroupGlooD1Ev(); int main() { _ZN4c10d16ProcessGroupGlooD1Ev(); }"
                            TESSERA_LIBTORCH_HAS_GLOO)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT TESSERA_GLOO_INCLUDE_DIR)
    message(STATUS "Tessera is built without Gloo: install libgloo-dev for make_gloo_backend()")
  elseif(NOT TESSERA_LIBTORCH_HAS_GLOO)
    message(STATUS "Tessera is built without Gloo: this LibTorch does not contain c10d::ProcessGroupGloo")
  else()
    set(TESSERA_HAS_GLOO ON)
    add_library(tessera_gloo INTERFACE)
    target_include_directories(tessera_gloo SYSTEM INTERFACE "${TESSERA_GLOO_INCLUDE_DIR}")
  endif()
endif()
