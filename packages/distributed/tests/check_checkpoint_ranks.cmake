# One training run that continues with different numbers of ranks:
#   cmake -D PROGRAM=<checkpoint_ranks> -D DIRECTORY=<scratch> -D "LAUNCH=<launch.py;--ranks>" -P ...

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${DIRECTORY}")
set(steps 0)
foreach(ranks IN ITEMS 4 3 1 7 2 1 2 4)
  math(EXPR steps "${steps} + 4")
  execute_process(
    COMMAND ${LAUNCH} ${ranks} -- "${PROGRAM}" "${DIRECTORY}" ${steps}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0 OR NOT output MATCHES "${ranks} ranks: steps [0-9]+ to ${steps}, equal")
    message(FATAL_ERROR "expected ${ranks} ranks to go on to step ${steps}, but got result ${result}")
  endif()
endforeach()
