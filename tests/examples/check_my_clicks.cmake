# Trains on made-up clicks: a user clicks an item if the kinds of both are high enough. Predicts new pairs of them.
#   cmake -D MY_CLICKS=<program> -D SCRATCH=<folder> -P ...
cmake_minimum_required(VERSION 3.25)
foreach(variable IN ITEMS MY_CLICKS SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_my_clicks.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

# 100 users of 5 kinds, and 60 items of 5 kinds. Each user has seen all items but two. The order is random enough.
file(REMOVE_RECURSE "${SCRATCH}")
set(seen "item,hour,clicked,user\n")
set(new "user,hour,item\n")
set(expected "")
foreach(user RANGE 0 99)
  foreach(item RANGE 0 59)
    math(EXPR hour "(${user} + 7 * ${item}) % 24")
    math(EXPR clicked "(${user} % 5 + ${item} % 5) / 5")
    math(EXPR is_new "(${user} * 13 + ${item}) % 60 / 58")
    if(is_new)
      string(APPEND new "u${user},${hour},i${item}\n")
      list(APPEND expected ${clicked})
    else()
      string(APPEND seen "i${item},${hour},${clicked},u${user}\n")
    endif()
  endforeach()
endforeach()
string(APPEND new "nobody,,nothing\n")
file(WRITE "${SCRATCH}/seen.csv" "${seen}")
file(WRITE "${SCRATCH}/new.csv" "${new}")

execute_process(
  COMMAND "${MY_CLICKS}" "${SCRATCH}/seen.csv" "${SCRATCH}/new.csv"
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "expected status 0, but got ${status}:\n${output}${errors}")
endif()
if(NOT errors MATCHES "epoch 5/5 .* val_auc +(1|0\\.9[5-9])")
  message(FATAL_ERROR "expected a good AUC of held-out examples, but got:\n${errors}")
endif()
string(REGEX MATCHALL "[^\n]+" probabilities "${output}")
list(LENGTH probabilities count)
list(POP_BACK probabilities of_nobody)
list(LENGTH expected expected_count)
math(EXPR expected_count "${expected_count} + 1")
if(NOT count EQUAL expected_count OR NOT of_nobody GREATER 0 OR NOT of_nobody LESS 1)
  message(FATAL_ERROR "expected ${expected_count} probabilities, but got ${count}, the last of them ${of_nobody}")
endif()
set(wrong 0)
foreach(probability clicked IN ZIP_LISTS probabilities expected)
  if((clicked AND probability LESS 0.5) OR (NOT clicked AND probability GREATER 0.5))
    math(EXPR wrong "${wrong} + 1")
  endif()
endforeach()
if(wrong GREATER 10)
  message(FATAL_ERROR "expected at most 10 wrong predictions of ${expected_count}, but got ${wrong}:\n${output}")
endif()


# A missing label is an error, and not a large negative number.
file(WRITE "${SCRATCH}/unlabeled.csv" "${seen}i1,3,,u1\n")
expect_message(1 "is NaN, so its update was skipped" "${MY_CLICKS}" "${SCRATCH}/unlabeled.csv" "${SCRATCH}/new.csv")

expect_message(1 "usage: my_clicks EXAMPLES NEW_EXAMPLES" "${MY_CLICKS}" "${SCRATCH}/seen.csv")
expect_message(1 "nowhere.csv" "${MY_CLICKS}" nowhere.csv "${SCRATCH}/new.csv")
expect_message(1 "clicked" "${MY_CLICKS}" "${SCRATCH}/new.csv" "${SCRATCH}/new.csv")
