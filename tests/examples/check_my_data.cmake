# Trains on made-up clicks in two CSV files, in which each user clicks items of one kind. The first recommended items
# must be the others of that kind.
# The same clicks in Parquet files give the same lists.
#   cmake -D MY_DATA=<program> -D CSV_TO_PARQUET=<program> -D SCRATCH=<folder> -P ...
cmake_minimum_required(VERSION 3.25)
foreach(variable IN ITEMS MY_DATA CSV_TO_PARQUET SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_my_data.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

# 120 users with 7 clicks each, and 60 items of 5 kinds. Only the clicks show an item's kind.
file(REMOVE_RECURSE "${SCRATCH}")
foreach(file IN ITEMS 0 1)
  set(text "time,item,user\n")
  foreach(i RANGE 0 59)
    math(EXPR user "60 * ${file} + ${i}")
    foreach(click RANGE 0 6)
      math(EXPR item "${user} % 5 + 5 * ((${user} / 5 * 5 + ${click}) % 12)")
      string(APPEND text "${click},i${item},u${user}\n")
    endforeach()
  endforeach()
  file(WRITE "${SCRATCH}/clicks_${file}.csv" "${text}")
endforeach()

execute_process(
  COMMAND "${MY_DATA}" "${SCRATCH}/clicks_0.csv" "${SCRATCH}/clicks_1.csv"
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "expected status 0, but got ${status}:\n${output}${errors}")
endif()
if(NOT "${output}${errors}" MATCHES "recall_at_10")
  message(FATAL_ERROR "expected the recall, but got:\n${output}${errors}")
endif()
foreach(user IN ITEMS 0 7 63 119)
  if(NOT output MATCHES "\nu${user}: i([0-9]+) i([0-9]+) i([0-9]+)")
    message(FATAL_ERROR "expected a list for user u${user}, but got:\n${output}")
  endif()
  math(EXPR kind "${user} % 5")
  foreach(item IN ITEMS ${CMAKE_MATCH_1} ${CMAKE_MATCH_2} ${CMAKE_MATCH_3})
    math(EXPR kind_of_item "${item} % 5")
    if(NOT kind_of_item EQUAL kind)
      message(FATAL_ERROR "expected items of kind ${kind} for user u${user}, but got:\n${CMAKE_MATCH_0}")
    endif()
  endforeach()
endforeach()

foreach(file IN ITEMS 0 1)
  execute_process(
    COMMAND "${CSV_TO_PARQUET}" "${SCRATCH}/clicks_${file}.csv" "${SCRATCH}/clicks_${file}.parquet"
            COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(
  COMMAND "${MY_DATA}" "${SCRATCH}/clicks_0.parquet" "${SCRATCH}/clicks_1.parquet"
  OUTPUT_VARIABLE output_of_parquet
  ERROR_VARIABLE errors
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "expected status 0, but got ${status}:\n${output_of_parquet}${errors}")
endif()
# Lines of users begin with u. The others have times.
string(REGEX MATCHALL "\nu[^\n]*" lists "\n${output}")
string(REGEX MATCHALL "\nu[^\n]*" lists_of_parquet "\n${output_of_parquet}")
list(LENGTH lists count)
if(NOT count EQUAL 120 OR NOT lists STREQUAL lists_of_parquet)
  message(FATAL_ERROR "expected the lists of 120 users, but got ${count}, and from Parquet:\n${output_of_parquet}")
endif()

expect_message(2 "usage: my_data FILE" "${MY_DATA}")
expect_message(1 "nowhere.csv" "${MY_DATA}" nowhere.csv)
file(WRITE "${SCRATCH}/other.csv" "user,item\nu1,i1\n")
expect_message(1 "time" "${MY_DATA}" "${SCRATCH}/other.csv")
file(WRITE "${SCRATCH}/few.csv" "user,item,time\nu1,i1,1\nu1,i2,2\nu2,i1,1\n")
expect_message(1 "no user in column 'user' has min_examples = 3 examples" "${MY_DATA}" "${SCRATCH}/few.csv")
