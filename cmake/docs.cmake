# Adds the target docs, which builds the API reference, if Doxygen is found.

if(PROJECT_IS_TOP_LEVEL)
  find_package(Doxygen 1.9.4 QUIET)
endif()
if(DOXYGEN_FOUND)
  set(TESSERA_DOCS_DIR "${PROJECT_BINARY_DIR}/docs")
  configure_file(docs/Doxyfile.in "${TESSERA_DOCS_DIR}/Doxyfile" @ONLY)
  add_custom_target(docs COMMAND Doxygen::doxygen "${TESSERA_DOCS_DIR}/Doxyfile" VERBATIM)
endif()
