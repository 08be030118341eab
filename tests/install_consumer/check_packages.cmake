# Makes the .tar.gz and, on Debian, the .deb of BUILD, unpacks them in SCRATCH, and configures the consumer against each,
# with the LibTorch in LIBTORCH and the Arrow in ARROW, which is empty for a Tessera without Arrow. It builds and runs the
# consumer against the first, and compares the files of the second with it. SOURCE is the source folder of Tessera.
set(required ARROW BUILD GENERATOR LIBTORCH SCRATCH SOURCE)
include("${CMAKE_CURRENT_LIST_DIR}/consume.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
find_program(dpkg_deb dpkg-deb)
set(generators TGZ)
if(dpkg_deb)
  list(APPEND generators DEB)
endif()
foreach(generator IN LISTS generators)
  run("${CMAKE_CPACK_COMMAND}" --config "${BUILD}/CPackConfig.cmake" -G ${generator} -B "${SCRATCH}/packages")
endforeach()

# check_package(NAME PREFIX): checks the files and configures the consumer.
function(check_package name prefix)
  file(GLOB_RECURSE scripts "${prefix}/lib*/cmake/tessera/*.cmake")
  foreach(script IN LISTS scripts)
    file(READ "${script}" text)
    foreach(folder IN ITEMS "${SOURCE}" "${BUILD}" "${LIBTORCH}" ${ARROW})
      string(FIND "${text}" "${folder}" position)
      if(NOT position EQUAL -1)
        message(FATAL_ERROR "${script} names ${folder}, which another machine does not have")
      endif()
    endforeach()
  endforeach()
  if(NOT EXISTS "${prefix}/share/doc/libtessera-dev/copyright")
    message(FATAL_ERROR "${name} has no license in ${prefix}/share/doc")
  endif()
  if(NOT EXISTS /opt/libtorch)
    expect_refusal("${name}-without-libtorch" "but none of these is one: ${prefix} /opt/libtorch" -D
                   "CMAKE_PREFIX_PATH=${prefix}")
  endif()
  configure("${CMAKE_CURRENT_LIST_DIR}" "${name}-build" -D "CMAKE_PREFIX_PATH=${prefix}" -D "LibTorch_ROOT=${LIBTORCH}"
            -D "TesseraArrow_ROOT=${ARROW}")
endfunction()

file(GLOB archive "${SCRATCH}/packages/tessera-*.tar.gz")
file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${SCRATCH}/tgz")
file(GLOB prefix "${SCRATCH}/tgz/*")
check_package(tgz "${prefix}")
build_and_run(tgz-build)

if(dpkg_deb)
  file(GLOB archive "${SCRATCH}/packages/libtessera-dev_*.deb")
  run("${dpkg_deb}" -x "${archive}" "${SCRATCH}/deb")
  check_package(deb "${SCRATCH}/deb/usr")
  execute_process(COMMAND diff -r "${prefix}" "${SCRATCH}/deb/usr" COMMAND_ERROR_IS_FATAL ANY)
  foreach(field IN ITEMS Depends Description Maintainer Version)
    execute_process(COMMAND "${dpkg_deb}" -f "${archive}" ${field} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    if(text STREQUAL "")
      message(FATAL_ERROR "${archive} has no field ${field}")
    endif()
    message("${field}: ${text}")
    if(field STREQUAL "Depends" AND NOT text MATCHES "libhwy-dev.*libisal-dev.*nlohmann-json3-dev.*zlib1g-dev")
      message(FATAL_ERROR "${archive} does not depend on the packages that its config needs, but on ${text}")
    endif()
  endforeach()
endif()

# It has a precompiled header of a gigabyte, and stays only after an error.
file(REMOVE_RECURSE "${SCRATCH}")
