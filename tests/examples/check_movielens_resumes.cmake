# Runs MovieLens with --checkpoint. A run that is killed and resumed must give the RMSE of an uninterrupted run.
#   cmake -D MOVIELENS=<program> -D DATA=<folder> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS MOVIELENS DATA SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_movielens_resumes.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

function(rmse_of result epochs)
  execute_process(
    COMMAND "${MOVIELENS}" --data "${DATA}" --json --epochs ${epochs} --batch 20 ${ARGN}
    OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(JSON rmse GET "${output}" rmse)
  set(${result} "${rmse}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
set(checkpoints "${SCRATCH}/checkpoints")
rmse_of(uninterrupted 4 --checkpoint "${checkpoints}")
# Removes the newest checkpoint, as if the run had been killed in the last epoch.
file(GLOB saved LIST_DIRECTORIES true "${checkpoints}/checkpoint_*")
list(SORT saved)
list(LENGTH saved count)
if(NOT count EQUAL 2)
  message(FATAL_ERROR "expected the last two checkpoints, but got ${saved}")
endif()
list(GET saved 1 newest)
file(REMOVE_RECURSE "${newest}")
rmse_of(resumed 4 --checkpoint "${checkpoints}" --export "${SCRATCH}/rater.pt")
message("uninterrupted ${uninterrupted}, resumed ${resumed}")
if(NOT resumed STREQUAL uninterrupted OR NOT EXISTS "${SCRATCH}/rater.pt")
  message(FATAL_ERROR "expected equal RMSE and an exported file")
endif()

foreach(option IN ITEMS save export)
  expect_message(1 "--${option} must be a file in a folder" "${MOVIELENS}" --data "${DATA}" --${option} "${SCRATCH}/no/file")
endforeach()
expect_message(1 "--save must not be a file that is read" "${MOVIELENS}" --data "${DATA}" --save "${DATA}/u.data")
expect_message(1 "--save and --export must be two files" "${MOVIELENS}" --data "${DATA}" --save "${SCRATCH}/a" --export "${SCRATCH}/a")
expect_message("1[0-9]+" "--save: must not be empty" sh -c "'${MOVIELENS}' --save ''")
expect_message(1 "--checkpoint must be a folder" "${MOVIELENS}" --data "${DATA}" --checkpoint "${SCRATCH}/rater.pt/folder")
expect_message(1 "was trained with --seed 0 --batch 20, but got --seed 1 --batch 20" "${MOVIELENS}" --data "${DATA}" --epochs 4
     --batch 20 --checkpoint "${checkpoints}" --seed 1)
expect_error_when_output_is_full("${MOVIELENS}" --data "${DATA}" --epochs 1)

# If a file can't be written after training, the report still appears and existing files stay as they were.
file(WRITE "${SCRATCH}/kept.pt" "mine")
expect_report_when_disk_is_full("equal_after_reload\": null" "[save_to_file] ${SCRATCH}/kept.pt: the file can't be written" "${MOVIELENS}"
                  --data "${DATA}" --epochs 1 --json --save "${SCRATCH}/kept.pt")
expect_report_when_disk_is_full("saving and loading: equal" "[export_torchscript]" "${MOVIELENS}" --data "${DATA}" --epochs 1)
file(READ "${SCRATCH}/kept.pt" text)
file(GLOB parts "${SCRATCH}/kept.pt.*")
if(NOT text STREQUAL "mine" OR parts)
  message(FATAL_ERROR "expected the file to stay as it was and nothing beside it, but got '${text}' and ${parts}")
endif()
# A missing folder for temporary files is an error before training.
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "TMPDIR=${SCRATCH}/no" "${MOVIELENS}" --data "${DATA}" --epochs 1
                OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 1 OR NOT error MATCHES "Set TMPDIR" OR error MATCHES "epoch")
  message(FATAL_ERROR "expected a missing TMPDIR to be refused before training, but got ${status} and\n${error}")
endif()
set(endless "${MOVIELENS}" --data "${DATA}" --epochs 1000000)
expect_message_when_stopped(INT 130 "stopped by SIGINT; the same command continues from" epoch ${endless} --checkpoint "${SCRATCH}/new")
expect_message_when_stopped(TERM 143 "stopped by SIGTERM, without a result" epoch ${endless})
# Wherever in an epoch the signal came.
expect_message_when_stopped(INT 130 "the same command continues from" epoch "${MOVIELENS}" --data "${DATA}" --epochs 300 --batch 20
                  --checkpoint "${SCRATCH}/interrupted")
rmse_of(interrupted 300 --checkpoint "${SCRATCH}/interrupted")
rmse_of(uninterrupted 300)
if(NOT interrupted STREQUAL uninterrupted)
  message(FATAL_ERROR "expected the RMSE ${uninterrupted} after an interruption, too, but got ${interrupted}")
endif()
