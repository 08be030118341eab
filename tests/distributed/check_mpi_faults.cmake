# Runs mpi_faults on four ranks, of which rank 2 misbehaves, and reads the errors of each rank.
#   cmake -D FAULT=... -D PROGRAM=... -D SCRATCH=... -D "MPIRUN=mpirun;-np" -P check_mpi_faults.cmake
foreach(variable IN ITEMS FAULT PROGRAM SCRATCH MPIRUN)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_mpi_faults.cmake needs -D ${variable}=...")
  endif()
endforeach()

set(folder "${SCRATCH}/${FAULT}")
file(REMOVE_RECURSE "${folder}")
file(MAKE_DIRECTORY "${folder}")
execute_process(
  COMMAND ${MPIRUN} 4 "${PROGRAM}" "${FAULT}" "${folder}"
  TIMEOUT 60
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)

function(complain problem)
  set_property(GLOBAL APPEND_STRING PROPERTY problems "${problem}\n")
endfunction()

# expect(RANK KEY REGEX) checks the line of this key that the rank wrote.
function(expect rank key regex)
  set(text "")
  if(EXISTS "${folder}/rank_${rank}.txt")
    file(READ "${folder}/rank_${rank}.txt" text)
  endif()
  if(NOT text MATCHES "(^|\n)${key}: ${regex}")
    complain("rank ${rank}: expected \"${key}: ${regex}\", but got:\n${text}")
  endif()
endfunction()

# expect_end(RANK LEAST MOST) checks how long the rank waited, in milliseconds.
function(expect_end rank least most)
  file(READ "${folder}/rank_${rank}.txt" text)
  if(NOT text MATCHES "milliseconds: ([0-9]+)" OR CMAKE_MATCH_1 LESS least OR CMAKE_MATCH_1 GREATER most)
    complain("rank ${rank}: expected an end after ${least} to ${most} ms, but got:\n${text}")
  endif()
endfunction()

set(timed_out "(did not complete within 2000 ms|was aborted, since rank [013] timed out after [0-9]+ ms in alltoall number 17)")
set(absent ": rank 2 did not arrive \\(it may be stopped, dead, or computing\\)\\. Look at what it printed last")
set(order "All ranks must issue the same collectives in the same order\\.")

foreach(rank IN ITEMS 0 1 3)
  set(start "\\[MpiBackend\\] rank ${rank} of 4: alltoall number 17")
  set(least 1900)
  set(most 20000) # Time-out and grace are 4 s. A busy machine may take longer.
  if(FAULT MATCHES "^(stops|sleeps)$")
    expect(${rank} error "${start} ${timed_out}${absent}")
  elseif(FAULT STREQUAL "is_killed") # MPI may notice before the time-out.
    expect(${rank} error "${start} ([^\n]*)rank 2 did not arrive")
    set(least 0)
  elseif(FAULT STREQUAL "calls_barrier")
    expect(${rank} error "${start} [^\n]*: rank 2 waits in barrier number 17\\. ${order}")
  elseif(FAULT STREQUAL "calls_barrier_first")
    expect(${rank} error "${start} [^\n]*: rank 2 waits in alltoall number 18\\. ${order}")
  elseif(FAULT STREQUAL "comes_late")
    expect(${rank} error "${start} ${timed_out}: all ranks now wait in this collective; rank 2 arrived last, ")
  elseif(FAULT STREQUAL "leaves")
    expect(${rank} error "${start} [^\n]*: rank 2 has left the program after 16 collectives\\.")
    set(least 0)
  elseif(FAULT STREQUAL "sends_less")
    expect(${rank} error "${start} (failed: expected 400000 bytes from rank 2, but got 399992 |was aborted, since rank [0-3] failed after [0-9]+ ms in alltoall number 17)")
    set(least 0)
  endif()
  expect_end(${rank} ${least} ${most})
  expect(${rank} again "\\[MpiBackend\\] rank ${rank} of 4: no collective can start, because an earlier one failed: \\[MpiBackend\\] rank ${rank} of 4: alltoall number 17")
endforeach()

if(FAULT STREQUAL "calls_barrier")
  expect(2 error "\\[MpiBackend\\] rank 2 of 4: barrier number 17 [^\n]*: rank 0 waits in alltoall number 17; rank 1 waits in alltoall number 17; rank 3 waits in alltoall number 17\\. ${order}")
elseif(FAULT STREQUAL "calls_barrier_first")
  expect(2 error "\\[MpiBackend\\] rank 2 of 4: alltoall number 18 [^\n]*: rank 0 waits in alltoall number 17;")
elseif(FAULT STREQUAL "comes_late")
  expect(2 error "\\[MpiBackend\\] rank 2 of 4: alltoall number 17 was aborted, since rank [013] timed out after [0-9]+ ms in alltoall number 17: all ranks now wait in this collective; rank 2 arrived last")
elseif(FAULT STREQUAL "sends_less")
  expect(2 error "\\[MpiBackend\\] rank 2 of 4: alltoall number 17 (failed: expected 399992 bytes from rank [013], but got 400000 |was aborted)")
endif()

# No process may be left behind, not even a stopped one.
foreach(rank RANGE 3)
  if(EXISTS "${folder}/rank_${rank}.txt")
    file(STRINGS "${folder}/rank_${rank}.txt" pid REGEX "^pid: ")
    string(REPLACE "pid: " "" pid "${pid}")
    foreach(second RANGE 20)
      if(EXISTS "/proc/${pid}")
        execute_process(COMMAND ${CMAKE_COMMAND} -E sleep 1)
      endif()
    endforeach()
    if(EXISTS "/proc/${pid}")
      complain("rank ${rank}, process ${pid}, is still there")
    endif()
  endif()
endforeach()
if(result EQUAL 0 AND NOT FAULT STREQUAL "is_killed") # --enable-recovery calls that a success.
  complain("expected a failure of mpirun, but it returned 0")
endif()
get_property(problems GLOBAL PROPERTY problems)
if(problems)
  message(FATAL_ERROR "${problems}\nmpirun returned ${result} and printed:\n${output}")
endif()
