# Runs the leaderboard on a made-up file, in which each user walks along a circle of items, some of them backwards. The
# best answer is known: the next item of the walk. Then it goes on with the file of results, and checks the files of
# public data sets.
#   cmake -D LEADERBOARD=<program> -D MOVIELENS=<folder> -D SCRATCH=<folder> -P ...
# With -D PYTHON=<an interpreter with NumPy>, it checks the lists of --lists.
# With the environment variable TESSERA_QUALITY_DATA, a folder with the public files, it also compares the popularity of
# Beauty's items with the published value.
cmake_minimum_required(VERSION 3.25)
foreach(variable IN ITEMS LEADERBOARD MOVIELENS SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_leaderboard.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")
file(REMOVE_RECURSE "${SCRATCH}")

# The page has each published row of the program.
set(root "${CMAKE_CURRENT_LIST_DIR}/../..")
file(READ "${root}/docs/quality.md" page)
file(READ "${root}/examples/leaderboard/data_sets.cpp" source)
string(REGEX MATCHALL "{\"[^\"]+\", {[0-9.]+, [0-9.]+}" published "${source}")
list(LENGTH published count)
if(count LESS 40)
  message(FATAL_ERROR "expected the published results in data_sets.cpp, but found ${count}")
endif()
foreach(row IN LISTS published)
  string(REGEX REPLACE "{\"(.+)\", {(.+), (.+)}" "| \\1 | \\2 | \\3 |" line "${row}")
  string(FIND "${page}" "${line}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "docs/quality.md has no line '${line}', which data_sets.cpp has. Put it in, or correct one of them.")
  endif()
endforeach()

# 600 users with 12 items each, of 60 items.
set(lines "")
foreach(user RANGE 1 600)
  math(EXPR direction "2 * (${user} % 2) - 1")
  string(APPEND lines "${user}")
  foreach(i RANGE 1 12)
    math(EXPR item "(7 * (60 + ${user} + ${direction} * ${i})) % 60 + 1")
    string(APPEND lines " ${item}")
  endforeach()
  string(APPEND lines "\n")
endforeach()
file(WRITE "${SCRATCH}/walks.txt" "${lines}")
set(results "${SCRATCH}/results.json")
set(untrained "${LEADERBOARD}" --own "${SCRATCH}/walks.txt" --results "${results}")
set(own ${untrained} --set epochs=60)

execute_process(COMMAND ${own} --seeds 1 --json OUTPUT_VARIABLE output ERROR_VARIABLE progress COMMAND_ERROR_IS_FATAL ANY)
foreach(expected IN ITEMS "walks.txt, popularity" "walks.txt, item-kNN" "walks.txt, RP3beta" "walks.txt, EASE\n"
                        "walks.txt, EASE, refitted" "walks.txt, SASRec, seed 0 \\(1 of 1\\)"
                        "walks.txt, mixture of SASRec and EASE, seed 0 \\(1 of 1\\)\n$")
  if(NOT progress MATCHES "${expected}")
    message(FATAL_ERROR "expected a line '${expected}', but got ${progress}")
  endif()
endforeach()
string(JSON count LENGTH "${output}")
string(JSON name GET "${output}" 5 model)
string(JSON popularity GET "${output}" 0 metrics NDCG@10)
string(JSON neighbors GET "${output}" 1 metrics NDCG@10)
string(JSON walks GET "${output}" 2 metrics NDCG@10)
string(JSON ease GET "${output}" 3 metrics NDCG@10)
string(JSON tries LENGTH "${output}" 3 tries)
string(JSON memory GET "${output}" 3 peak_mebibytes)
string(JSON error GET "${output}" 0 standard_errors NDCG@10)
string(JSON ndcg GET "${output}" 5 metrics NDCG@10)
string(JSON epochs GET "${output}" 5 epochs)
string(JSON points LENGTH "${output}" 5 curve)
string(JSON mixture GET "${output}" 6 metrics NDCG@10)
string(JSON weights LENGTH "${output}" 6 tries)
if(NOT count EQUAL 7
   OR NOT name STREQUAL "SASRec"
   OR popularity GREATER 0.5
   OR neighbors LESS 0.95
   OR walks LESS 0.95
   OR ease LESS 0.95
   OR NOT tries EQUAL 24
   OR memory LESS 50
   OR error LESS 0.005
   OR error GREATER 0.02
   OR ndcg LESS 0.95
   OR mixture LESS 0.95
   OR NOT weights EQUAL 7
   OR NOT points EQUAL epochs)
  message(FATAL_ERROR "expected that all but popularity find the next item, with tries and a curve, but got ${output}")
endif()

# A second call trains only the seed that is missing. Markdown has the mean of both.
execute_process(COMMAND ${own} --seeds 2 --markdown OUTPUT_VARIABLE output ERROR_VARIABLE progress COMMAND_ERROR_IS_FATAL
                        ANY)
if(progress MATCHES "popularity|seed 0" OR NOT progress MATCHES "seed 1 \\(2 of 2\\)")
  message(FATAL_ERROR "expected only seed 1, but got ${progress}")
endif()
if(NOT output MATCHES "\\*\\*Tessera SASRec\\*\\* \\| [01]\\.[0-9]+ ± 0\\.[0-9]+ \\|")
  message(FATAL_ERROR "expected a mean and a spread, but got ${output}")
endif()
execute_process(COMMAND ${own} --show --json OUTPUT_VARIABLE output ERROR_VARIABLE progress COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${output}")
if(NOT count EQUAL 9 OR progress)
  message(FATAL_ERROR "expected nine results and no training, but got ${progress} ${output}")
endif()
# Other settings are another model.
execute_process(COMMAND ${untrained} --set epochs=61 --show --json
                OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${output}")
if(NOT count EQUAL 5)
  message(FATAL_ERROR "expected only the five methods without seeds, but got ${output}")
endif()

# A moving average of the weights changes the validation values. The mixture scores histories that are longer than the
# sequences of the model.
set(tried ${untrained} --seeds 1 --json --models SASRec "mixture of SASRec and EASE" --set epochs=2 max_length=3)
foreach(setting IN ITEMS patience=10 averaging=0.9)
  execute_process(COMMAND ${tried} ${setting} OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(JSON curve GET "${output}" 0 curve)
  string(JSON mixture GET "${output}" 1 metrics NDCG@10)
  if(mixture LESS 0.95 OR "${curve}" STREQUAL "${other_curve}")
    message(FATAL_ERROR "expected a mixture that finds the next item, and other values with an average, but got ${output}")
  endif()
  set(other_curve "${curve}")
endforeach()

# The lists of the first seed, of results that the file has already. Another program finds the same values in them.
execute_process(COMMAND ${own} --seeds 2 --models EASE SASRec --lists "${SCRATCH}/lists.txt" --json
                OUTPUT_FILE "${SCRATCH}/lists.json" ERROR_VARIABLE progress COMMAND_ERROR_IS_FATAL ANY)
if(progress MATCHES "seed 1|popularity" OR NOT progress MATCHES "EASE.*SASRec, seed 0")
  message(FATAL_ERROR "expected EASE and the first seed of SASRec, but got ${progress}")
endif()
file(STRINGS "${SCRATCH}/lists.txt" lines)
list(LENGTH lines count)
list(GET lines 0 title)
if(NOT count EQUAL 1202 OR NOT title MATCHES "^# own .*walks.txt\tEASE\t0$")
  message(FATAL_ERROR "expected 600 lists of two models, but got ${count} lines after '${title}'")
endif()
if(PYTHON)
  set(check "${PYTHON}" "${root}/examples/leaderboard/check_lists.py")
  execute_process(COMMAND ${check} "${SCRATCH}/lists.txt" "${SCRATCH}/walks.txt" "${SCRATCH}/lists.json"
                  OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "EASE, seed 0: NDCG@10 [01]\\.[0-9]+ ± .*SASRec, seed 0: NDCG@10")
    message(FATAL_ERROR "expected the values of both models, but got ${output}")
  endif()
  # Another first item changes them.
  file(READ "${SCRATCH}/lists.txt" text)
  string(REGEX REPLACE "\n([0-9]+) ([0-9]+) " "\n\\2 \\1 " text "${text}")
  file(WRITE "${SCRATCH}/lists.txt" "${text}")
  expect_message(1 "but the results have" ${check} "${SCRATCH}/lists.txt" "${SCRATCH}/walks.txt"
                 "${SCRATCH}/lists.json")
endif()
expect_message(108 "excludes" ${own} --lists "${SCRATCH}/lists.txt" --show)

# Public files: none, a wrong one, one that is compressed.
set(public "${LEADERBOARD}" --movielens "${MOVIELENS}" --results "${SCRATCH}/public.json")
expect_message(1 "Gowalla is skipped: there is no --data folder with gowalla_train.txt gowalla_test.txt" ${public} --only
               Gowalla)
expect_message(1 "expected the files of a data set, but found none" ${public} --only Gowalla)
file(WRITE "${SCRATCH}/data/Beauty.txt" "1 2 3 4 5\n")
expect_message(1 "data/Beauty.txt: expected the SHA-256 226cce9c" ${public} --data "${SCRATCH}/data" --only Beauty)
expect_message(1 "of the text, but got" ${public} --data "${SCRATCH}/data" --only Beauty)
file(WRITE "${SCRATCH}/data/gowalla_train.txt" "0 5 1\n")
file(WRITE "${SCRATCH}/data/gowalla_test.txt" "0 2\n")
expect_message(1 "of the lines with ascending items, but got" ${public} --data "${SCRATCH}/data" --only
               Gowalla)
execute_process(COMMAND ${public} --only ML-100K --seeds 1 OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
if(output MATCHES "GLocal-K" OR NOT output MATCHES "Tessera rater +[01]\\.")
  message(FATAL_ERROR "expected an RMSE, and no published one for other ratings, but got ${output}")
endif()
foreach(row IN ITEMS "rater, ratings only" "rater, mean of 3 models")
  if(NOT output MATCHES "Tessera ${row} +[01]\\.")
    message(FATAL_ERROR "expected a row '${row}', but got ${output}")
  endif()
endforeach()
# A training that is stopped leaves the results before it.
expect_message_when_stopped(
  TERM 143 "stopped. The same command goes on from here" "seed 0" "${LEADERBOARD}" --own "${SCRATCH}/walks.txt" --results
  "${SCRATCH}/stopped.json" --set epochs=1000000)
execute_process(COMMAND "${LEADERBOARD}" --own "${SCRATCH}/walks.txt" --results "${SCRATCH}/stopped.json" --set
                        epochs=1000000 --show --json
                OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${output}")
if(NOT count EQUAL 5)
  message(FATAL_ERROR "expected the results of the five methods without seeds, but got ${output}")
endif()
# A file with other contents is other data.
file(WRITE "${SCRATCH}/walks.txt" "1 2 3 4 5\n2 3 4 5 1\n")
execute_process(COMMAND ${own} --show --json OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${output}")
if(NOT count EQUAL 0)
  message(FATAL_ERROR "expected no results for the changed file, but got ${output}")
endif()
expect_message(108 "excludes" ${own} --only Beauty)

file(WRITE "${SCRATCH}/damaged.json" "[{\"data\": 1}]")
expect_message(1 "damaged.json" "${LEADERBOARD}" --own "${SCRATCH}/walks.txt" --results "${SCRATCH}/damaged.json")
expect_message(1 "--results must be a file in a folder that can be written to" "${LEADERBOARD}" --own "${SCRATCH}/walks.txt" --results "${SCRATCH}/nowhere/results.json")
expect_message(105 "nowhere" "${LEADERBOARD}" --data "${SCRATCH}/nowhere")
expect_message(105 "Bauty" "${LEADERBOARD}" --only Bauty)

# Other settings make another result, which the first call of this file does not have.
execute_process(COMMAND ${untrained} --seeds 1 --json --set dropout=0.25 loss=softmax batch=100 epochs=2
                OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
string(JSON set GET "${output}" 5 settings)
string(JSON dropout GET "${set}" dropout)
string(JSON batch GET "${set}" batch)
string(JSON epochs GET "${output}" 5 epochs)
if(NOT dropout EQUAL 0.25 OR NOT batch EQUAL 100 OR NOT epochs EQUAL 2)
  message(FATAL_ERROR "expected the settings of --set, but got ${output}")
endif()
expect_message(1 "walks.txt has no setting 'droput'. Its settings are loss, negatives, epochs" ${own} --set droput=0.25)
expect_message(1 "--set batch: expected a number >= 1, but got 0" ${own} --set batch=0)
expect_message(1 "averaging: expected a momentum between 0 and 1, but got 1" ${own} --set averaging=1 --show)
expect_message(1 "dropout must be in [0, 1), but got 5" ${own} --set dropout=5 --show)
expect_message(1 "[leaderboard --set dropout] expected JSON" ${own} --set dropout=much)
expect_message(1 "[leaderboard --set batch] expected a whole number" ${own} --set batch=1.5)
expect_message(1 "--set loss: expected softmax, sampled, binary, but got 'hinge'" ${own} --set loss=hinge negatives=5)
expect_message(105 "expected NAME=VALUE, but got 'batch'" ${own} --set batch)
expect_message(105 "got 'epochs' twice" ${own} --set epochs=2)
expect_message(1 "--lists and --results are the same file" ${own} --lists "${results}")
expect_message(1 "there is no 'SASREC'. The models are EASE" ${own} --models SASREC)
expect_message(1 "ML-100K is skipped: there is no u.data in --movielens 'nowhere'" "${LEADERBOARD}" --movielens nowhere)

if(DEFINED ENV{TESSERA_QUALITY_DATA})
  expect_message(1 "margin must be in [-1, 1], but got 3" ${public} --data "$ENV{TESSERA_QUALITY_DATA}" --only Gowalla
                 --set margin=3 --show)
  execute_process(COMMAND ${public} --data "$ENV{TESSERA_QUALITY_DATA}" --only Beauty --models popularity --json
                  OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(JSON popularity GET "${output}" 0 metrics recall@10)
  if(popularity LESS 0.013 OR popularity GREATER 0.0153) # published: 0.0152; items that are equally popular matter
    message(FATAL_ERROR "expected that popularity has a recall@10 of about 0.014 on Beauty, but got ${output}")
  endif()
endif()
