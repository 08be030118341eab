# Rank 2 of 4 does not arrive at a step of a training run. The others report it within the timeout, and three
# ranks continue from the last checkpoint:
#   cmake -D FAULT=... -D PROGRAM=<checkpoint_ranks> -D SCRATCH=<folder> -D "LAUNCH=<launch.py;--ranks>" -P ...

cmake_minimum_required(VERSION 3.25)
set(directory "${SCRATCH}/${FAULT}")
file(REMOVE_RECURSE "${directory}")
string(TIMESTAMP begin "%s" UTC)
execute_process(
  COMMAND ${LAUNCH} 4 -- "${PROGRAM}" "${directory}" 4 ${FAULT}
  TIMEOUT 60
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
string(TIMESTAMP end "%s" UTC)
math(EXPR seconds "${end} - ${begin}")

set(problems "")
if(seconds GREATER 30)
  string(APPEND problems "expected an end soon after 2 s, but it took ${seconds} s\n")
endif()
set(why "waits in [^\n]*, but can't reach the other ranks: rank 2 \\([^)]*\\) (did not arrive in time|is gone)")
if(FAULT STREQUAL "saves")
  set(why "is in forward\\(\\) of sharded layer 1 \\(call [0-9]+ over backend 1\\), but rank 2 is in save_checkpoint\\(\\)")
endif()
foreach(rank IN ITEMS 0 1 3)
  if(NOT output MATCHES "\\[sharded_strategy\\] rank ${rank} of 4 ${why}")
    string(APPEND problems "expected rank ${rank} to say: ${why}\n")
  endif()
endforeach()
if(FAULT STREQUAL "saves" AND NOT output MATCHES "rank 2 of 4 is in save_checkpoint\\(\\)[^\n]*, but rank 0 is in forward\\(\\)")
  string(APPEND problems "expected rank 2 to say where it was\n")
endif()
if(problems)
  message(FATAL_ERROR "${problems}the launcher returned ${result} and printed:\n${output}")
endif()

execute_process(
  COMMAND ${LAUNCH} 3 -- "${PROGRAM}" "${directory}" 6
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
message("${output}")
if(NOT result EQUAL 0 OR NOT output MATCHES "3 ranks: steps 2 to 6, equal")
  message(FATAL_ERROR "expected three ranks to go on from step 2, but got result ${result}")
endif()
