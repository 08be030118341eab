# Finds faiss, whose target needs that of OpenMP. It was compiled for GNU's, whose threads LibTorch uses, too. With the
# target of another compiler, a program would have two.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_package(OpenMP COMPONENTS CXX QUIET)
elseif(NOT TARGET OpenMP::OpenMP_CXX)
  add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
  target_link_libraries(OpenMP::OpenMP_CXX INTERFACE gomp)
endif()
find_package(faiss CONFIG QUIET)
set(TesseraFaiss_FOUND ${faiss_FOUND})
