# The example quick_start learns, and says what it can't do.
#   cmake -D QUICK_START=<program> -P ...
if(NOT DEFINED QUICK_START)
  message(FATAL_ERROR "check_quick_start.cmake needs -D QUICK_START=...")
endif()
include("${CMAKE_CURRENT_LIST_DIR}/says.cmake")

execute_process(COMMAND "${QUICK_START}" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
if(NOT output MATCHES "step 300  loss 0\\.[0-5]")
  message(FATAL_ERROR "expected a loss of less than 0.6 after 300 steps")
endif()
says(0 "usage: quick_start" "${QUICK_START}" --help)
says(2 "usage: quick_start" "${QUICK_START}" run)
says_when_full("${QUICK_START}")
