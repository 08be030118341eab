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

# reports_when_full(REPORT TEXT COMMAND...): where no file may grow beyond 1 KiB, as on a full disk, the command ends
# with 1, standard output has REPORT and standard error TEXT. No argument may have a space.
function(reports_when_full report text)
  list(JOIN ARGN " " command)
  execute_process(COMMAND "${BASH}" -c "trap '' XFSZ; ulimit -f 1; exec ${command}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  string(FIND "${output}" "${report}" report_place)
  string(FIND "${error}" "${text}" place)
  if(NOT status EQUAL 1 OR report_place EQUAL -1 OR place EQUAL -1)
    message(FATAL_ERROR "expected status 1, '${report}' and '${text}', but got ${status},\n${output} and\n${error}")
  endif()
endfunction()
