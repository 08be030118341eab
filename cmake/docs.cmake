# If Doxygen is found, adds the target docs, which builds the site of the pages and the API reference, and a test
# that fails if Doxygen warns.

if(PROJECT_IS_TOP_LEVEL)
  find_package(Doxygen 1.9.4 QUIET)
endif()
if(DOXYGEN_FOUND)
  set(TESSERA_DOCS_COMMAND
      ${CMAKE_COMMAND} -D "OUT=${PROJECT_BINARY_DIR}/docs" -D DOXYGEN=$<TARGET_FILE:Doxygen::doxygen> -P
      "${PROJECT_SOURCE_DIR}/docs/site/build.cmake")
  add_custom_target(docs COMMAND ${TESSERA_DOCS_COMMAND} VERBATIM)
endif()
