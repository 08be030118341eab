# The click models on a few generated examples: each learns, serves what it predicts from its exported file, and
# resumed in the middle of an epoch it gives what a straight run gives. What can't work is said before training.
#   cmake -D DLRM=<program> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS DLRM SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_dlrm.cmake needs -D ${variable}=...")
  endif()
endforeach()

file(REMOVE_RECURSE "${SCRATCH}")
set(small --generate 20000 --folder "${SCRATCH}/data" --dim 8 --batch 500 --learning-rate 0.02
          --dense-learning-rate 0.01)

function(auc_of result)
  execute_process(
    COMMAND "${DLRM}" ${small} --json ${ARGN} OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(JSON auc GET "${output}" auc)
  string(JSON bayes GET "${output}" bayes_auc)
  string(JSON is_served GET "${output}" equal_from_export)
  if(NOT is_served OR auc LESS 0.67 OR bayes LESS auc)
    message(FATAL_ERROR "expected 0.67 <= AUC <= that of the true probabilities, and equal_from_export, but got
${output}")
  endif()
  set(${result} "${auc}" PARENT_SCOPE)
endfunction()

foreach(model IN ITEMS dlrm dcn)
  set(checkpoints "${SCRATCH}/${model}")
  set(arguments
      --model ${model} --epochs 2 --every-steps 7 --checkpoint "${checkpoints}" --export "${SCRATCH}/${model}.pt")
  auc_of(straight ${arguments} --history "${SCRATCH}/history_${model}")
  foreach(file IN ITEMS history_${model}/history.csv history_${model}/history.svg ${model}.pt
                        ${model}.pt.pipeline.json ${model}/model.json ${model}/pipeline.json)
    if(NOT EXISTS "${SCRATCH}/${file}")
      message(FATAL_ERROR "expected ${SCRATCH}/${file}")
    endif()
  endforeach()
  # As if it had been killed before the last epoch's end.
  file(GLOB saved LIST_DIRECTORIES true "${checkpoints}/checkpoint_*")
  list(SORT saved)
  list(POP_BACK saved newest)
  file(REMOVE_RECURSE "${newest}")
  auc_of(resumed ${arguments})
  message("${model}: straight ${straight}, resumed ${resumed}")
  if(NOT resumed STREQUAL straight)
    message(FATAL_ERROR "expected equal AUC")
  endif()
endforeach()

# fails_with(TEXT ARGUMENTS...): the program ends with 1 and names the problem.
function(fails_with text)
  execute_process(COMMAND "${DLRM}" ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  string(FIND "${error}" "${text}" place)
  if(NOT status EQUAL 1 OR place EQUAL -1)
    message(FATAL_ERROR "expected status 1 and '${text}', but got ${status} and\n${error}")
  endif()
endfunction()

fails_with("is of a model with other options" ${small} --seed 5 --checkpoint "${SCRATCH}/dlrm")
fails_with("nowhere.txt" --data nowhere.txt --test nowhere.txt)
fails_with("--data needs --test" --data "${SCRATCH}/data/20000_train.txt")
file(WRITE "${SCRATCH}/damaged.txt" "1\t2\n")
fails_with("damaged.txt" --data "${SCRATCH}/damaged.txt" --test "${SCRATCH}/data/20000_test.txt")
file(READ "${SCRATCH}/data/20000_test.txt" lines LIMIT 20000)
file(APPEND "${SCRATCH}/damaged.txt" "${lines}") # whose last line is cut off
execute_process(
  COMMAND "${DLRM}" --data "${SCRATCH}/damaged.txt" --test "${SCRATCH}/data/20000_test.txt" --malformed skip
  OUTPUT_QUIET ERROR_VARIABLE error COMMAND_ERROR_IS_FATAL ANY)
if(NOT error MATCHES "2 lines skipped")
  message(FATAL_ERROR "expected a report of skipped lines, but got ${error}")
endif()
