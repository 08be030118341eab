# Installs BUILD into SCRATCH, then configures, builds and runs the consumer against it.
foreach(variable IN ITEMS BUILD GENERATOR SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check.cmake needs -D ${variable}=...")
  endif()
endforeach()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}") # files of an earlier install must not help
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${SCRATCH}/build" -G "${GENERATOR}"
    -D CMAKE_BUILD_TYPE=Release -D "CMAKE_PREFIX_PATH=${SCRATCH}/prefix")
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
run("${SCRATCH}/build/consumer")
