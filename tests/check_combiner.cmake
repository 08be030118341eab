# Fails unless the compiler refuses a combiner without an implementation:
# cmake -D ROOT=<repository> -D COMPILER=<c++> -D "FLAGS=<options>" -D FOLDER=<to write to> -P check_combiner.cmake

cmake_minimum_required(VERSION 3.25)

set(header tessera/tables/combiner.h)
file(READ "${ROOT}/include/${header}" text)
string(REPLACE "kSqrtn }" "kSqrtn, kFourth }" with_fourth "${text}")
if(with_fourth STREQUAL text)
  message(FATAL_ERROR "expected the enumerators of Combiner to end with 'kSqrtn }' in ${header}")
endif()
file(WRITE "${FOLDER}/${header}" "${with_fourth}")
execute_process(
  COMMAND "${COMPILER}" -fsyntax-only -std=c++20 -Werror=switch "-I${FOLDER}" "-I${ROOT}" "-I${ROOT}/include" ${FLAGS}
          "${ROOT}/src/tables/combiner.cpp" "${ROOT}/src/tables/combiner_operators.cpp"
  RESULT_VARIABLE status
  ERROR_VARIABLE message)
# Each of these ten functions has a switch without a default: to_string, next_combiner, is_divided, combiner_term,
# combiner_denominator, combiner_weight_factor, and four that write operators.
string(REGEX MATCHALL "[^\n]*kFourth[^\n]* not handled in switch" refusals "${message}")
list(REMOVE_DUPLICATES refusals) # both files include combiner_rule.h
list(LENGTH refusals count)
if(status EQUAL 0 OR NOT count EQUAL 10)
  message(FATAL_ERROR "expected the compiler to refuse ten functions without the fourth combiner, but:\n${message}")
endif()

# There must be no other error, such as that of a wrong include path.
string(REGEX MATCHALL "error: [^\n]*" errors "${message}")
list(FILTER errors EXCLUDE REGEX "kFourth.* not handled in switch")
if(errors)
  message(FATAL_ERROR "expected only errors of the fourth combiner, but:\n${message}")
endif()
