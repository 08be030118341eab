# cpack runs this before it packs. The folder where LibTorch was when Tessera was built may be another one on another
# machine, so the config of the package gets /opt/libtorch instead.
file(GLOB_RECURSE configs "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/tesseraConfig.cmake")
list(LENGTH configs count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "expected one tesseraConfig.cmake in ${CPACK_TEMPORARY_INSTALL_DIRECTORY}, but got '${configs}'")
endif()
file(READ "${configs}" config)
string(REGEX REPLACE "set\\(LibTorch_FALLBACK_DIR \"[^\"]*\"\\)" "set(LibTorch_FALLBACK_DIR \"/opt/libtorch\")" changed
                     "${config}")
if(NOT changed MATCHES "/opt/libtorch")
  message(FATAL_ERROR "expected set(LibTorch_FALLBACK_DIR ...) in ${configs}")
endif()
file(WRITE "${configs}" "${changed}")
