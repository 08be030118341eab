# Trains SASRec on made-up ratings, in which each user walks along a circle of movies, half of them backwards. The model
# must find the next movie. Item-kNN finds it, too, because its neighbors are those of the latest movies. Popularity
# can't.
#   cmake -D SASREC=<program> -D SCRATCH=<folder> -P ...
cmake_minimum_required(VERSION 3.25)
foreach(variable IN ITEMS SASREC SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_sasrec.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

# 80 users with 15 ratings each, and 80 movies.
set(data "${SCRATCH}/data")
file(REMOVE_RECURSE "${SCRATCH}")
file(WRITE "${data}/u.genre" "unknown|0\n")
file(WRITE "${data}/u.occupation" "other\n")
set(movies "")
foreach(movie RANGE 1 80)
  string(APPEND movies "${movie}|Film ${movie}|01-Jan-1990|||1\n")
endforeach()
file(WRITE "${data}/u.item" "${movies}")
set(users "")
set(ratings "")
set(lines "")
foreach(user RANGE 1 80)
  string(APPEND users "${user}|30|M|other|12345\n")
  math(EXPR direction "2 * (${user} % 2) - 1")
  string(APPEND lines "${user}")
  foreach(i RANGE 1 15)
    math(EXPR movie "(7 * (80 + ${user} + ${direction} * ${i})) % 80 + 1")
    math(EXPR seconds "880000000 + ${i}")
    string(APPEND ratings "${user}\t${movie}\t5\t${seconds}\n")
    string(APPEND lines " ${movie}")
  endforeach()
  string(APPEND lines "\n")
endforeach()
file(WRITE "${data}/u.user" "${users}")
file(WRITE "${data}/u.data" "${ratings}")
file(WRITE "${SCRATCH}/items.txt" "${lines}") # the same in one file

set(options --dim 32 --blocks 1 --heads 2 --dropout 0.1 --batch 10)
set(small --data "${data}" ${options})
foreach(loss IN ITEMS softmax binary sampled)
  set(epochs 30)
  set(input --data "${data}")
  if(loss STREQUAL "sampled")
    set(input --data "${SCRATCH}/items.txt" --negatives 50)
  endif()
  if(loss STREQUAL "binary")
    set(epochs 60) # one negative at a time takes longer
  endif()
  execute_process(
    COMMAND "${SASREC}" ${input} ${options} --loss ${loss} --runs 2 --epochs ${epochs} --patience ${epochs} --learning-rate 0.005
            --json
    OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
  string(JSON test_users GET "${output}" users)
  string(JSON popularity GET "${output}" popularity ndcg)
  string(JSON neighbors GET "${output}" item_knn ndcg)
  string(JSON runs LENGTH "${output}" runs)
  if(NOT test_users EQUAL 80
     OR NOT runs EQUAL 2
     OR neighbors LESS 0.95)
    message(FATAL_ERROR "expected 80 users, 2 runs and a good item-kNN")
  endif()
  foreach(run RANGE 1)
    string(JSON seed GET "${output}" runs ${run} seed)
    string(JSON ndcg GET "${output}" runs ${run} ndcg)
    if(NOT seed EQUAL run
       OR ndcg LESS 0.95
       OR NOT ndcg GREATER popularity)
      message(FATAL_ERROR "expected seed ${run} and an NDCG@10 of 0.95 or more, above ${popularity}")
    endif()
  endforeach()
endforeach()

# The table says so if the model is not better than a simple method.
execute_process(
  COMMAND "${SASREC}" ${small} --runs 1 --epochs 1 --learning-rate 1e-9 OUTPUT_VARIABLE output ERROR_QUIET
                                                                         COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "SASRec does NOT beat item-kNN")
  message(FATAL_ERROR "expected a line about item-kNN, but got ${output}")
endif()
execute_process(COMMAND "${SASREC}" --help OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "--max-length")
  message(FATAL_ERROR "expected the options, but got ${output}")
endif()
file(WRITE "${SCRATCH}/wrong.txt" "1 2 3 4 5\n2 3 x 4 5\n")
expect_message(1 "wrong.txt:2: expected `user item item ...`, with numbers from 1 and spaces between them, but got 'x 4 5'"
               "${SASREC}" --data "${SCRATCH}/wrong.txt")
file(WRITE "${SCRATCH}/gaps.txt" "1 2000000000 3 4 5\n")
expect_message(1 "the largest item is 2000000000, but the users have only 4 items" "${SASREC}" --data
               "${SCRATCH}/gaps.txt")
file(WRITE "${SCRATCH}/short.txt" "1 2 3\n")
expect_message(1 "expected users with four items or more" "${SASREC}" --data "${SCRATCH}/short.txt")
expect_message(1 "num_heads must divide dim" "${SASREC}" --data "${data}" --dim 10 --heads 4)
expect_error_when_output_is_full("${SASREC}" ${small} --runs 1 --epochs 1)
expect_message_when_stopped(
  INT 130 "stopped by SIGINT, without a result" "/1000000" "${SASREC}" ${small} --runs 1 --epochs 1000000 --patience
  1000000)
