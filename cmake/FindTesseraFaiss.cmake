# Finds faiss, whose target links that of OpenMP. faiss and LibTorch use the threads of GNU's OpenMP. FindOpenMP gives
# the OpenMP of the compiler, so a program of another compiler would start the threads of two.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_package(OpenMP COMPONENTS CXX QUIET)
elseif(NOT TARGET OpenMP::OpenMP_CXX)
  add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
  target_link_libraries(OpenMP::OpenMP_CXX INTERFACE gomp)
endif()
find_package(faiss CONFIG QUIET)
set(TesseraFaiss_FOUND ${faiss_FOUND})
