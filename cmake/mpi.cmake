# Finds MPI's C library; a machine without one builds Tessera without MpiBackend.
#
#   TESSERA_HAS_C10D whether LibTorch has c10d, without which there are no ranks
#   TESSERA_HAS_MPI  whether there is one
#   tessera_mpi_c    its C functions alone: the headers would bring old C++ ones along
#
# Another MPI than the default one, e.g. Debian's MPICH beside OpenMPI:
#   -DMPI_C_COMPILER=mpicc.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.mpich

# A LibTorch may have been built without its distributed package.
set(TESSERA_HAS_C10D OFF)
if(EXISTS "${LibTorch_ROOT_DIR}/include/torch/csrc/distributed/c10d/Backend.hpp")
  set(TESSERA_HAS_C10D ON)
endif()

set(TESSERA_HAS_MPI OFF)
if(TESSERA_WITH_MPI AND TESSERA_HAS_C10D)
  include(CheckLanguage)
  check_language(C) # FindMPI asks mpicc, and does so for C only where C is enabled.
  if(CMAKE_C_COMPILER)
    enable_language(C)
    find_package(MPI COMPONENTS C QUIET)
  endif()
  if(TARGET MPI::MPI_C)
    set(TESSERA_HAS_MPI ON)
    add_library(tessera_mpi_c INTERFACE)
    target_link_libraries(tessera_mpi_c INTERFACE MPI::MPI_C)
    target_compile_definitions(tessera_mpi_c INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  else()
    message(STATUS "Tessera is built without MPI: install libopenmpi-dev and openmpi-bin for MpiBackend")
  endif()
endif()
