# MovieLens with --checkpoint: killed after some epochs, resumed, and exported, it gives the RMSE of a
# straight run.
#   cmake -D MOVIELENS=<program> -D DATA=<folder> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS MOVIELENS DATA SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_movielens_resumes.cmake needs -D ${variable}=...")
  endif()
endforeach()

function(rmse_of result)
  execute_process(
    COMMAND "${MOVIELENS}" --data "${DATA}" --json --epochs 4 --batch 20 ${ARGN}
    OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(JSON rmse GET "${output}" rmse)
  set(${result} "${rmse}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
set(checkpoints "${SCRATCH}/checkpoints")
rmse_of(straight --checkpoint "${checkpoints}")
# As if it had been killed in the last epoch.
file(GLOB saved LIST_DIRECTORIES true "${checkpoints}/checkpoint_*")
list(SORT saved)
list(LENGTH saved count)
if(NOT count EQUAL 2)
  message(FATAL_ERROR "expected the last two checkpoints, but got ${saved}")
endif()
list(GET saved 1 newest)
file(REMOVE_RECURSE "${newest}")
rmse_of(resumed --checkpoint "${checkpoints}" --export "${SCRATCH}/rater.pt")
message("straight ${straight}, resumed ${resumed}")
if(NOT resumed STREQUAL straight OR NOT EXISTS "${SCRATCH}/rater.pt")
  message(FATAL_ERROR "expected equal RMSE and an exported file")
endif()
