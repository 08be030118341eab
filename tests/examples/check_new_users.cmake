# Measures new users and movies on made-up ratings, in which each user rates movies of one kind, with 5 stars those of
# the user's taste, and with 1 star the others. Vectors of new users and movies must find the kind and the taste, which
# popularity and biases can't.
#   cmake -D NEW_USERS=<program> -D SCRATCH=<folder> -P ...
cmake_minimum_required(VERSION 3.25)
foreach(variable IN ITEMS NEW_USERS SCRATCH)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_new_users.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

# 320 users with 12 ratings each, and 120 movies of 4 kinds. Only the ratings show a movie's kind.
set(data "${SCRATCH}/data")
file(REMOVE_RECURSE "${SCRATCH}")
file(WRITE "${data}/u.genre" "unknown|0\n")
file(WRITE "${data}/u.occupation" "other\n")
set(movies "")
foreach(movie RANGE 1 120)
  string(APPEND movies "${movie}|Film ${movie}|01-Jan-1990|||1\n")
endforeach()
file(WRITE "${data}/u.item" "${movies}")
set(users "")
set(ratings "")
foreach(user RANGE 1 320)
  string(APPEND users "${user}|30|M|other|12345\n")
  foreach(i RANGE 1 12)
    # A movie of kind user % 4. Its taste is 0 or 1.
    math(EXPR number "(${user} / 4 * 11 + ${i} * 7) % 30")
    math(EXPR movie "${number} * 4 + ${user} % 4 + 1")
    math(EXPR stars "5 - 4 * ((${number} + ${user} / 8) % 2)")
    math(EXPR seconds "880000000 + ${i}")
    string(APPEND ratings "${user}\t${movie}\t${stars}\t${seconds}\n")
  endforeach()
endforeach()
file(WRITE "${data}/u.user" "${users}")
file(WRITE "${data}/u.data" "${ratings}")

execute_process(COMMAND "${NEW_USERS}" --data "${data}" --runs 1 OUTPUT_VARIABLE output ERROR_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
string(FIND "${output}" "the latest ratings of new movies" middle)
string(SUBSTRING "${output}" 0 ${middle} of_users)
string(SUBSTRING "${output}" ${middle} -1 of_movies)

# read(TEXT MODEL WAY COLUMN RESULT): reads a mean from the lines of a model.
function(read text model way column result)
  set(columns " +[0-9.]+ \\+- [0-9.]+")
  string(REPEAT "${columns}" ${column} before)
  if(NOT text MATCHES "\n${model}[^\n]*(\n  [^\n]*)*\n  ${way}${before} +([0-9.]+) \\+-")
    message(FATAL_ERROR "expected a line '${way}' of ${model}")
  endif()
  set(${result} "${CMAKE_MATCH_2}" PARENT_SCOPE)
endfunction()

# Random movies contain a fifth of the test in the first 20. Those of the kind contain all.
read("${of_users}" "popularity" "the same for all users" 1 popularity)
foreach(model IN ITEMS "implicit matrix factorization;folded in" "SimpleX, a row for each user;folded in"
                       "SimpleX, only the user's items;from the history" "SASRec;from the history")
  list(GET model 0 name)
  list(GET model 1 way)
  read("${of_users}" "${name}" "${way}" 1 recall)
  read("${of_movies}" "${name}" "all of its users" 1 recall_of_movies)
  if(recall LESS 0.9 OR NOT popularity LESS 0.5)
    message(FATAL_ERROR "expected a recall@20 of 0.9 or more for new users from ${name}, but got ${recall}, and less than 0.5 from popularity, but got ${popularity}")
  endif()
  # The vectors of SASRec are for the movie that comes next, so they say less about earlier ones.
  if(NOT name STREQUAL "SASRec" AND recall_of_movies LESS 0.9)
    message(FATAL_ERROR "expected a recall@20 of 0.9 or more for new movies from ${name}, but got ${recall_of_movies}")
  endif()
endforeach()
# Without a vector, stars are wrong by 2.
read("${of_users}" "matrix factorization" "folded in" 0 rmse)
read("${of_users}" "matrix factorization" "movie biases" 0 without)
read("${of_movies}" "matrix factorization" "all of its users" 0 rmse_of_movies)
if(rmse GREATER 1.2 OR rmse_of_movies GREATER 1.2 OR without LESS 1.8)
  message(FATAL_ERROR "expected an RMSE below 1.2 with vectors of new users and movies, but got ${rmse} and ${rmse_of_movies}, and above 1.8 without, but got ${without}")
endif()

expect_message(1 "u.genre" "${NEW_USERS}" --data nowhere)
expect_message(105 "--only" "${NEW_USERS}" --only nothing)
expect_error_when_output_is_full("${NEW_USERS}" --data "${data}" --runs 1 --only popularity)
# No movie has 20 training users.
file(WRITE "${data}/u.data" "1\t1\t5\t880000001\n")
expect_message(1 "has enough ratings to be held out" "${NEW_USERS}" --data "${data}" --only popularity)
