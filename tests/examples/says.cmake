# says(STATUS TEXT COMMAND...): the command ends with the status, and standard error has the text.
function(says expected text)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  string(FIND "${error}" "${text}" place)
  if(NOT status MATCHES "^${expected}$" OR place EQUAL -1)
    message(FATAL_ERROR "expected status ${expected} and '${text}', but got ${status} and\n${error}")
  endif()
endfunction()

# says_when_stopped(SIGNAL STATUS TEXT PROGRESS COMMAND...): the signal comes when PROGRESS was on standard error.
find_program(BASH bash REQUIRED)
function(says_when_stopped signal expected text progress)
  says(${expected} "${text}" "${BASH}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/interrupt.sh" ${signal} "${progress}" ${ARGN})
endfunction()

# says_when_full(COMMAND...): it ends with 1 where its report can't be written. No argument may have a space.
function(says_when_full)
  list(JOIN ARGN " " command)
  says(1 "standard output failed" sh -c "${command} >/dev/full")
endfunction()
