# A run that is resumed in another process must export the same model as an uninterrupted run. A
# program without Tessera must get the same scores from the file.
#   cmake -D TRAIN=<export_for_serving> -D SERVE=<serve_ranker> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS TRAIN SERVE SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_export_for_serving.cmake needs -D ${variable}=...")
  endif()
endforeach()

# Sets `result` to the line of scores at the end of a command's output.
function(scores_of result)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
  if(NOT output MATCHES "(scores [^\n]+)\n$")
    message(FATAL_ERROR "expected a last line of scores, but got:\n${output}")
  endif()
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
scores_of(first "${TRAIN}" --folder "${SCRATCH}/resumed" --steps 100)
scores_of(resumed "${TRAIN}" --folder "${SCRATCH}/resumed" --steps 200)
scores_of(uninterrupted "${TRAIN}" --folder "${SCRATCH}/uninterrupted" --steps 200)
scores_of(served "${SERVE}" "${SCRATCH}/resumed/ranker.pt")
if(first STREQUAL uninterrupted OR NOT resumed STREQUAL uninterrupted OR NOT served STREQUAL resumed)
  message(FATAL_ERROR "expected resumed, uninterrupted and served scores to be equal, and others than after "
                      "half of the steps: ${resumed}, ${uninterrupted}, ${served}, ${first}")
endif()
