# Trains the click models on a few generated examples, the DCN-v2 with Adam. Each model must learn, its exported file
# must give the same predictions, and a run that resumes in the middle of an epoch must give the AUC of an uninterrupted
# run. Options that can't work must be refused before training.
#   cmake -D DLRM=<program> -D ARROW=<1 if it was built with Arrow> -D SCRATCH=<folder> -P ...
foreach(variable IN ITEMS DLRM ARROW SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_dlrm.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
set(small --generate 20000 --folder "${SCRATCH}/data" --dim 8 --batch 500 --learning-rate 0.02
          --dense-learning-rate 0.01)

function(auc_of result)
  execute_process(
    COMMAND "${DLRM}" ${small} --json ${ARGN} OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(JSON auc GET "${output}" auc)
  string(JSON bayes GET "${output}" bayes_auc)
  string(JSON is_served GET "${output}" equal_from_export)
  string(JSON threads GET "${output}" threads)
  if(threads LESS 1)
    message(FATAL_ERROR "expected at least 1 thread, but got\n${output}")
  endif()
  if(NOT is_served OR auc LESS 0.67 OR bayes LESS auc)
    message(FATAL_ERROR "expected 0.67 <= AUC <= that of the true probabilities, and equal_from_export, but got
${output}")
  endif()
  set(${result} "${auc}" PARENT_SCOPE)
endfunction()

set(optimizer_dlrm adagrad)
set(optimizer_dcn adam)
foreach(model IN ITEMS dlrm dcn)
  set(checkpoints "${SCRATCH}/${model}")
  # A run with other options left this file. It ended before its first checkpoint.
  file(WRITE "${checkpoints}/run.json" [[{"options": {"batch": 7}, "model": {}}]])
  set(arguments
      --model ${model} --optimizer ${optimizer_${model}} --epochs 2 --every-steps 7 --checkpoint "${checkpoints}"
      --export "${SCRATCH}/${model}.pt")
  auc_of(uninterrupted ${arguments} --history "${SCRATCH}/history_${model}")
  foreach(file IN ITEMS history_${model}/history.csv history_${model}/history.svg ${model}.pt
                        ${model}.pt.pipeline.json ${model}/run.json ${model}/pipeline.json)
    if(NOT EXISTS "${SCRATCH}/${file}")
      message(FATAL_ERROR "expected ${SCRATCH}/${file}")
    endif()
  endforeach()
  # Removes the newest checkpoint, as if the run had been killed before the end of the last epoch.
  file(GLOB saved LIST_DIRECTORIES true "${checkpoints}/checkpoint_*")
  list(SORT saved)
  list(POP_BACK saved newest)
  file(REMOVE_RECURSE "${newest}")
  auc_of(resumed ${arguments})
  message("${model}: uninterrupted ${uninterrupted}, resumed ${resumed}")
  if(NOT resumed STREQUAL uninterrupted)
    message(FATAL_ERROR "expected equal AUC")
  endif()
  # The trained model loads in another precision. Its file computes in float32.
  auc_of(mixed ${arguments} --precision bfloat16)
endforeach()

# Key tables learn nearly as well as those with vocabularies, although they see each example once.
execute_process(
  COMMAND "${DLRM}" ${small} --json --keys --epochs 2 --min-count 1 --capacity 3000
  OUTPUT_VARIABLE output
  ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
string(JSON auc GET "${output}" auc)
message("dlrm --keys: ${auc}")
if(auc LESS 0.66)
  message(FATAL_ERROR "expected an AUC of 0.66 or more with --keys, but got\n${output}")
endif()

# expect_failure(TEXT ARGUMENTS...): expects that the program ends with 1 and that its error has TEXT.
function(expect_failure text)
  expect_message(1 "${text}" "${DLRM}" ${ARGN})
endfunction()
expect_failure("--keys trains key tables" --keys --export "${SCRATCH}/keys.pt")
expect_failure("count of AfterOccurrences must be in" ${small} --keys --min-count 256)

# The last batch has one example.
set(odd --generate 2001 --folder "${SCRATCH}/odd" --batch 100)
expect_message(0 "" "${DLRM}" ${odd})
# --profile prints the phases of the training, also in the JSON.
foreach(format IN ITEMS "" --json)
  execute_process(
    COMMAND "${DLRM}" ${odd} --profile ${format} OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  foreach(phase IN ITEMS "reading" "pipeline" "lookup" "dense forward" "dense backward" "table update" "optimizer"
                         "metrics" "other" "parsing lines")
    if(NOT output MATCHES "(\n|\"phase\": \")${phase}[ \"]")
      message(FATAL_ERROR "expected the phase '${phase}', but got\n${output}")
    endif()
  endforeach()
endforeach()
string(JSON calls GET "${output}" profile 0 calls)
if(NOT calls EQUAL 22) # a batch more than steps finds the end
  message(FATAL_ERROR "expected 22 calls of the first phase, but got\n${output}")
endif()
# Truncated files are generated again.
set(cut "${SCRATCH}/odd/2001_train.txt")
file(SHA256 "${cut}" intact)
file(READ "${cut}" lines LIMIT 100000)
file(WRITE "${cut}" "${lines}")
expect_error_when_output_is_full("${DLRM}" ${odd})
file(SHA256 "${cut}" again)
if(NOT again STREQUAL intact)
  message(FATAL_ERROR "expected ${cut} to be whole again")
endif()
foreach(option IN ITEMS checkpoint export history write-arrays folder)
  expect_message("[1-9][0-9]*" "--${option}: must not be empty" sh -c "'${DLRM}' --${option} ''")
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" -E copy "${SCRATCH}/odd/2001_test.txt" "${SCRATCH}/read.txt")
foreach(option IN ITEMS checkpoint history write-arrays)
  expect_failure("--${option} must be a folder" ${odd} --${option} "${SCRATCH}/read.txt/folder")
endforeach()
expect_failure("--folder must be a folder" --folder "${SCRATCH}/read.txt/folder")
execute_process(COMMAND mkfifo "${SCRATCH}/pipe" COMMAND_ERROR_IS_FATAL ANY)
expect_failure("must be regular files" --data "${SCRATCH}/pipe" --test "${SCRATCH}/read.txt")
expect_failure("must be regular files" --data "${SCRATCH}/read.txt" --test "${SCRATCH}/pipe")
expect_failure("--export must not be a file that is read" --data "${SCRATCH}/read.txt" --test "${SCRATCH}/odd/2001_test.txt"
           --export "${SCRATCH}/read.txt")

# The checkpoints are complete, so there is nothing left to train. Other options are refused by name.
set(trained --epochs 2 --checkpoint "${SCRATCH}/dlrm")
expect_message(0 "already trained, 2 epochs" "${DLRM}" ${small} ${trained})
list(TRANSFORM small REPLACE "^500$" 250 OUTPUT_VARIABLE other)
expect_failure("was trained with --batch 500, but got --batch 250. Pass the same" ${other} ${trained})
list(TRANSFORM small REPLACE "^0.01$" 0.03 OUTPUT_VARIABLE other)
expect_failure("with --dense-learning-rate 0.01, but got --dense-learning-rate 0.03. Pass the same" ${other} ${trained})
expect_failure("with --min-count 2 --seed 0, but got --min-count 3 --seed 5. Pass the same" ${small} ${trained} --min-count 3 --seed 5)
list(REMOVE_AT small 0 1 2 3)
set(data "${SCRATCH}/data/20000_train.txt")
set(test "${SCRATCH}/data/20000_test.txt")
expect_failure("20000_test.txt, " ${small} ${trained} --data "${data}" --test "${data}")
set(small --data "${data}" --test "${test}" ${small})
expect_message(0 "already trained, 2 epochs" "${DLRM}" ${small} ${trained})

# A run that fails early leaves no files that make the corrected command fail.
set(new --checkpoint "${SCRATCH}/new")
expect_failure("[VocabularyBuilder 'C1'] none of" ${small} ${new} --min-count 1000000)
expect_failure("here: --min-count" ${small} ${new} --min-count 1000000)
file(MAKE_DIRECTORY "${SCRATCH}/new_history/history.csv")
expect_failure("this is a folder" ${small} ${new} --history "${SCRATCH}/new_history")
file(GLOB left "${SCRATCH}/new/*.json")
if(left)
  message(FATAL_ERROR "expected no files of a training that did not begin, but got ${left}")
endif()
file(WRITE "${SCRATCH}/foreign/pipeline.json" "mine")
expect_failure("expected a new directory or one of this program" ${small} --checkpoint "${SCRATCH}/foreign")
file(READ "${SCRATCH}/foreign/pipeline.json" text)
if(NOT text STREQUAL "mine")
  message(FATAL_ERROR "expected another program's file to stay, but got ${text}")
endif()
file(WRITE "${SCRATCH}/broken/run.json" "{\"options\": ")
expect_failure("run.json: expected JSON, but got" ${small} --checkpoint "${SCRATCH}/broken")
expect_failure("--export must be a file" ${small} --export /dev/null)
expect_report_when_disk_is_full("held-out examples" "[export_torchscript]" "${DLRM}" ${small} --export "${SCRATCH}/full.pt")
file(CREATE_LINK /dev/null "${SCRATCH}/device.pt" SYMBOLIC)
expect_failure("--export must be a file" ${small} --export "${SCRATCH}/device.pt")

# These trainings end early.
list(TRANSFORM small REPLACE "^0.0[12]$" 1e30 OUTPUT_VARIABLE diverging)
expect_failure("ended with a non-finite loss: the loss of step" ${diverging})
expect_message_when_stopped(INT 130 "stopped by SIGINT; the same command continues from" epoch "${DLRM}" ${small} ${new} --epochs
                  1000000)
expect_message_when_stopped(TERM 143 "stopped by SIGTERM, without a result" epoch "${DLRM}" ${small} --epochs 1000000)

expect_message("1[0-9]+" "--learning-rate: must be in [1e-30, 1e37], but got 0" "${DLRM}" --learning-rate 0)
expect_message("1[0-9]+" "--every-steps requires --checkpoint" "${DLRM}" --every-steps 5)
expect_message("1[0-9]+" "--every-steps" "${DLRM}" ${new} --every-steps 99999999999999999999)
expect_failure("nowhere.txt" --data nowhere.txt --test nowhere.txt)
expect_failure("--data needs --test" --data "${SCRATCH}/data/20000_train.txt")
file(WRITE "${SCRATCH}/damaged.txt" "1\t2\n")
expect_failure("here: --malformed skip" --data "${SCRATCH}/damaged.txt" --test "${SCRATCH}/data/20000_test.txt")
file(READ "${SCRATCH}/data/20000_test.txt" lines LIMIT 20000)
file(APPEND "${SCRATCH}/damaged.txt" "${lines}") # the last line is cut off
# Malformed lines of the test files are skipped and reported, too.
execute_process(
  COMMAND "${DLRM}" --data "${SCRATCH}/damaged.txt" --test "${SCRATCH}/damaged.txt" --malformed skip --max-malformed 2
  OUTPUT_QUIET ERROR_VARIABLE error COMMAND_ERROR_IS_FATAL ANY)
if(NOT error MATCHES "2 lines skipped.*2 lines skipped")
  message(FATAL_ERROR "expected two reports of skipped lines, but got ${error}")
endif()
expect_failure("at most 1 malformed lines, but got one more" --data "${SCRATCH}/damaged.txt" --test "${SCRATCH}/damaged.txt"
           --malformed skip --max-malformed 1)
expect_failure("--max-malformed needs --malformed skip" --max-malformed 1)
expect_failure("--export must not be a file that is read" --folder "${SCRATCH}/data" --export "${SCRATCH}/data/20000_test.npy")

if(NOT ARROW)
  return()
endif()
# The same examples in the format of Criteo_x1 are learned as well: with a header and commas, scaled numbers, and
# categories that are integers.
file(WRITE "${SCRATCH}/to_x1.awk" [[
BEGIN {
  FS = "\t"; OFS = ","
  printf "label"
  for (i = 1; i <= 39; ++i) printf(i <= 13 ? ",I" i : ",C" (i - 13))
  print ""
}
{
  for (i = 2; i <= 14; ++i) if ($i != "") $i = $i < 0 ? 0 : log(1 + $i) / 12
  for (i = 15; i <= 40; ++i) if ($i != "") {
    id = 0
    for (j = 1; j <= length($i); ++j) id = 16 * id + index("123456789abcdef", substr($i, j, 1))
    $i = sprintf("%.0f", id)
  }
  print
}
]])
foreach(part IN ITEMS train test)
  execute_process(
    COMMAND awk -f "${SCRATCH}/to_x1.awk" "${SCRATCH}/data/20000_${part}.txt" OUTPUT_FILE "${SCRATCH}/${part}.csv"
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND gzip -f "${SCRATCH}/train.csv" COMMAND_ERROR_IS_FATAL ANY)
list(REMOVE_AT small 0 1 2 3)
set(x1 --data "${SCRATCH}/train.csv.gz" --test "${SCRATCH}/test.csv")
execute_process(
  COMMAND "${DLRM}" ${small} ${x1} --json --epochs 2 --export "${SCRATCH}/x1.pt"
  OUTPUT_VARIABLE output
  ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
string(JSON auc GET "${output}" auc)
string(JSON is_served GET "${output}" equal_from_export)
message("Criteo_x1: ${auc}")
if(NOT is_served OR auc LESS 0.67)
  message(FATAL_ERROR "expected 0.67 <= AUC and equal_from_export, but got\n${output}")
endif()
expect_failure("must have the same format" ${x1} --test "${test}")

# expect_wrong_x1(TEXT HEADER ROW): expects that a training file with these two lines is refused with TEXT.
function(expect_wrong_x1 text header row)
  file(WRITE "${SCRATCH}/wrong.csv" "${header}\n${row}\n")
  expect_failure("wrong.csv' ${text}" --data "${SCRATCH}/wrong.csv" --test "${SCRATCH}/test.csv")
endfunction()
file(STRINGS "${SCRATCH}/test.csv" lines LIMIT_COUNT 2)
list(GET lines 0 header)
list(GET lines 1 row)
string(REPLACE ",C26" ",C27" renamed "${header}")
string(REGEX REPLACE "^([01]),[^,]*" "\\1,x" text "${row}")
expect_wrong_x1("has no column 'C26'" "${renamed}" "${row}")
expect_wrong_x1("line 2: expected 40 fields, but got 41" "${header}" "${row},7")
expect_wrong_x1("line 2: column 'I1' must be a number" "${header}" "${text}")
expect_wrong_x1("line 2: column 'C26' must be an integer" "${header}" "${row}.5")
