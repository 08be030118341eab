# A run that is interrupted and resumed in another process exports what a straight one does, and a
# program without Tessera gets the same scores from the file.
#   cmake -D TRAIN=<export_for_serving> -D SERVE=<serve_ranker> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS TRAIN SERVE SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_export_for_serving.cmake needs -D ${variable}=...")
  endif()
endforeach()

# The line of scores that a command ends with.
function(scores_of result)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
  if(NOT output MATCHES "(scores [^\n]+)\n$")
    message(FATAL_ERROR "expected a last line of scores, but got:\n${output}")
  endif()
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
scores_of(first "${TRAIN}" --folder "${SCRATCH}/halves" --steps 100)
scores_of(resumed "${TRAIN}" --folder "${SCRATCH}/halves" --steps 200)
scores_of(straight "${TRAIN}" --folder "${SCRATCH}/straight" --steps 200)
scores_of(served "${SERVE}" "${SCRATCH}/halves/ranker.pt")
if(first STREQUAL straight OR NOT resumed STREQUAL straight OR NOT served STREQUAL resumed)
  message(FATAL_ERROR "expected resumed, straight and served scores to be equal, and others than after "
                      "half of the steps: ${resumed}, ${straight}, ${served}, ${first}")
endif()
