# Finds Arrow C++. Without it, Tessera is built without the readers of CSV and Parquet files.
#
#   TESSERA_HAS_ARROW  whether Arrow was found
set(TESSERA_HAS_ARROW OFF)
if(TESSERA_WITH_ARROW AND data IN_LIST TESSERA_BUILT_PACKAGES)
  set(TesseraArrow_FALLBACK_DIR "${PROJECT_SOURCE_DIR}/.deps/arrow")
  find_package(TesseraArrow 24 MODULE QUIET)
  if(TARGET TesseraArrow::TesseraArrow)
    set(TESSERA_HAS_ARROW ON)
  else()
    message(STATUS "Tessera is built without Arrow: run ./run setup for make_csv_source and make_parquet_source")
  endif()
endif()
