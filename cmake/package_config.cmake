# cpack runs this before it packs. The folders where LibTorch and Arrow were when Tessera was built may be others on
# another machine, so the config of the package gets /opt/libtorch and /opt/arrow instead.
file(GLOB_RECURSE configs "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/tesseraConfig.cmake")
list(LENGTH configs count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "expected one tesseraConfig.cmake in ${CPACK_TEMPORARY_INSTALL_DIRECTORY}, but got '${configs}'")
endif()
file(READ "${configs}" config)
string(REGEX REPLACE "set\\(LibTorch_FALLBACK_DIR \"[^\"]*\"\\)" "set(LibTorch_FALLBACK_DIR \"/opt/libtorch\")" changed
                     "${config}")
string(REGEX REPLACE "set\\(TesseraArrow_FALLBACK_DIR \"[^\"]*\"\\)" "set(TesseraArrow_FALLBACK_DIR \"/opt/arrow\")"
                     changed "${changed}")
if(NOT changed MATCHES "/opt/libtorch")
  message(FATAL_ERROR "expected set(LibTorch_FALLBACK_DIR ...) in ${configs}")
endif()
file(WRITE "${configs}" "${changed}")
