# expect_message(STATUS TEXT COMMAND...): expects that the command ends with STATUS, a regular expression, and that its
# standard error has TEXT.
function(expect_message expected text)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  string(FIND "${error}" "${text}" position)
  if(NOT status MATCHES "^${expected}$" OR position EQUAL -1)
    message(FATAL_ERROR "expected status ${expected} and '${text}', but got ${status} and\n${error}")
  endif()
endfunction()

# expect_message_when_stopped(SIGNAL STATUS TEXT PROGRESS COMMAND...): the same for a command that gets SIGNAL after it
# has written PROGRESS to standard error.
find_program(BASH bash REQUIRED)
function(expect_message_when_stopped signal expected text progress)
  expect_message(${expected} "${text}" "${BASH}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/interrupt.sh" ${signal} "${progress}" ${ARGN})
endfunction()

# expect_error_when_output_is_full(COMMAND...): expects that the command ends with 1 if it can't write its report. No
# argument may have a space.
function(expect_error_when_output_is_full)
  list(JOIN ARGN " " command)
  expect_message(1 "standard output failed" sh -c "${command} >/dev/full")
endfunction()

# expect_report_when_disk_is_full(REPORT TEXT COMMAND...): runs the command while no file may grow beyond 1 KiB, as if
# the disk was full. Expects that it ends with 1, that standard output has REPORT, and that standard error has TEXT. No
# argument may have a space.
function(expect_report_when_disk_is_full report text)
  list(JOIN ARGN " " command)
  execute_process(COMMAND "${BASH}" -c "trap '' XFSZ; ulimit -f 1; exec ${command}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  string(FIND "${output}" "${report}" report_position)
  string(FIND "${error}" "${text}" position)
  if(NOT status EQUAL 1 OR report_position EQUAL -1 OR position EQUAL -1)
    message(FATAL_ERROR "expected status 1, '${report}' and '${text}', but got ${status},\n${output} and\n${error}")
  endif()
endfunction()
