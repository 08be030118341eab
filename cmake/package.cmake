# Settings of cpack, which makes a .deb and a .tar.gz of the installed tree: cmake --workflow --preset package
#
# LibTorch is not a Debian package, so the .deb can't depend on it. The config of the package searches
# CMAKE_PREFIX_PATH and LibTorch_ROOT, and then /opt/libtorch. The same is true for Arrow, TesseraArrow_ROOT and /opt/arrow.

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME libtessera-dev)
set(CPACK_PACKAGE_VENDOR "The Tessera authors")
set(TESSERA_PACKAGE_CONTACT "The Tessera authors <tessera@localhost>" CACHE STRING
    "Name and address of whoever makes the packages")
set(CPACK_PACKAGE_CONTACT "${TESSERA_PACKAGE_CONTACT}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/package_config.cmake")
set(CPACK_THREADS 0) # compresses with all cores

set(arrow_text "")
if(TESSERA_HAS_ARROW)
  set(arrow_text " The same is true for
Arrow ${TesseraArrow_VERSION}, for example from the pyarrow package of PyPI: give its folder in
TesseraArrow_ROOT, or unpack it into /opt/arrow.")
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Tessera is a C++20 library for recommender, ranking and retrieval models.
This package has its headers, its static libraries and its CMake package.

LibTorch ${LibTorch_MINOR_VERSION} is needed, too, but is not a Debian package. Give its
folder in CMAKE_PREFIX_PATH, or unpack it into /opt/libtorch.${arrow_text}")
set(depends "g++ (>= 4:12)" libhwy-dev)
if(training IN_LIST TESSERA_BUILT_PACKAGES)
  list(APPEND depends libisal-dev)
endif()
list(APPEND depends nlohmann-json3-dev)
if(data IN_LIST TESSERA_BUILT_PACKAGES)
  list(APPEND depends zlib1g-dev)
endif()
if(TESSERA_HAS_FAISS)
  list(APPEND depends libfaiss-dev)
endif()
if(TESSERA_HAS_MPI) # The ABIs of OpenMPI and MPICH differ.
  if(MPI_C_LIBRARIES MATCHES "mpich")
    list(APPEND depends libmpich-dev)
  else()
    list(APPEND depends libopenmpi-dev)
  endif()
endif()
list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
string(TOLOWER "${PROJECT_NAME}-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)

include(CPack)
