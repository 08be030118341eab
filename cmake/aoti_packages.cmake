# Defines the target tessera_aoti_packages for programs that load packages of AOTInductor.
#
# Such a package loads libtorch.so, although all that it uses is in libtorch_cpu.so. The folder that
# `./run setup` makes has no libtorch.so, because that of the CUDA wheel loads all of CUDA. An empty library
# takes its place. A program that links it has loaded this name, so the package needs no search path.
add_library(tessera_aoti_packages INTERFACE)
set(_tessera_torch "${LibTorch_ROOT_DIR}/lib/libtorch.so")
if(NOT EXISTS "${_tessera_torch}")
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/no_torch.cpp" "")
  add_library(tessera_empty_torch SHARED "${CMAKE_CURRENT_BINARY_DIR}/no_torch.cpp")
  set_target_properties(tessera_empty_torch PROPERTIES OUTPUT_NAME torch)
  set(_tessera_torch tessera_empty_torch)
endif()
target_link_libraries(
  tessera_aoti_packages
  INTERFACE LibTorch::LibTorch "-Wl,--push-state,--no-as-needed" ${_tessera_torch} "-Wl,--pop-state")
