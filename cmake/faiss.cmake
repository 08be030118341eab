# Finds faiss. Without it, Tessera is built without make_faiss_index.
#
#   TESSERA_HAS_FAISS  whether faiss was found
set(TESSERA_HAS_FAISS OFF)
if(TESSERA_WITH_FAISS AND search IN_LIST TESSERA_BUILT_PACKAGES)
  find_package(TesseraFaiss MODULE QUIET)
  if(TARGET faiss)
    set(TESSERA_HAS_FAISS ON)
  else()
    message(STATUS "Tessera is built without faiss: install libfaiss-dev for make_faiss_index")
  endif()
endif()
