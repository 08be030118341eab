# Finds MPI's C library. Without it, Tessera is built without MpiBackend.
#
#   TESSERA_HAS_C10D whether LibTorch has c10d, which ranks need
#   TESSERA_HAS_MPI  whether MPI was found
#   tessera_mpi_c    MPI's C functions, without the old C++ functions of its headers
#
# These options choose another MPI than the default one, e.g. Debian's MPICH instead of OpenMPI:
#   -DMPI_C_COMPILER=mpicc.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.mpich

# A LibTorch may have been built without its distributed package.
set(TESSERA_HAS_C10D OFF)
if(EXISTS "${LibTorch_ROOT_DIR}/include/torch/csrc/distributed/c10d/Backend.hpp")
  set(TESSERA_HAS_C10D ON)
endif()

set(TESSERA_HAS_MPI OFF)
if(TESSERA_WITH_MPI AND TESSERA_HAS_C10D AND distributed IN_LIST TESSERA_BUILT_PACKAGES)
  include(CheckLanguage)
  check_language(C) # FindMPI calls mpicc only if C is enabled.
  if(CMAKE_C_COMPILER)
    enable_language(C)
    find_package(MPI COMPONENTS C QUIET)
  endif()
  if(MPI_C_FOUND) # FindMPI defines MPI::MPI_C even if it finds no MPI that works.
    set(TESSERA_HAS_MPI ON)
    add_library(tessera_mpi_c INTERFACE)
    target_link_libraries(tessera_mpi_c INTERFACE MPI::MPI_C)
    target_compile_definitions(tessera_mpi_c INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  else()
    message(STATUS "Tessera is built without MPI: install libopenmpi-dev and openmpi-bin for MpiBackend")
  endif()
endif()
