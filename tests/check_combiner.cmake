# Fails unless the compiler refuses a combiner without an implementation:
# cmake -D ROOT=<repository> -D COMPILER=<c++> -D "FLAGS=<options>" -D FOLDER=<to write to> -P check_combiner.cmake

cmake_minimum_required(VERSION 3.25)

# compile(INCLUDE RESULT MESSAGE): compiles src/tables/combiner.cpp with the header in INCLUDE instead of the real one.
function(compile include result message)
  execute_process(
    COMMAND "${COMPILER}" -fsyntax-only -std=c++20 -Werror=switch "-I${include}" "-I${ROOT}" "-I${ROOT}/include"
            ${FLAGS} "${ROOT}/src/tables/combiner.cpp"
    RESULT_VARIABLE status
    ERROR_VARIABLE text)
  set(${result} "${status}" PARENT_SCOPE)
  set(${message} "${text}" PARENT_SCOPE)
endfunction()

set(header tessera/tables/combiner.h)
file(READ "${ROOT}/include/${header}" text)
string(REPLACE "kSqrtn }" "kSqrtn, kFourth }" with_fourth "${text}")
if(with_fourth STREQUAL text)
  message(FATAL_ERROR "expected the enumerators of Combiner to end with 'kSqrtn }' in ${header}")
endif()
file(WRITE "${FOLDER}/same/${header}" "${text}")
file(WRITE "${FOLDER}/fourth/${header}" "${with_fourth}")

compile("${FOLDER}/same" status message)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "expected src/tables/combiner.cpp to compile as it is, but:\n${message}")
endif()
compile("${FOLDER}/fourth" status message)
foreach(function to_string next_combiner is_divided combiner_term combiner_denominator combiner_weight_factor
              term_script denominator_script)
  if(status EQUAL 0 OR NOT message MATCHES "${function}[^\n]*:\n[^\n]*kFourth.* not handled in switch")
    message(FATAL_ERROR "expected the compiler to refuse ${function}() without the fourth combiner, but:\n${message}")
  endif()
endforeach()
