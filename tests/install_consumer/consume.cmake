# Functions of the tests in this folder.
cmake_minimum_required(VERSION 3.25)

foreach(variable IN LISTS required)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "expected -D ${variable}=...")
  endif()
endforeach()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# configure(SOURCE FOLDER ARGUMENTS...): configures a project in SCRATCH/FOLDER.
function(configure source folder)
  run("${CMAKE_COMMAND}" -S "${source}" -B "${SCRATCH}/${folder}" -G "${GENERATOR}" -D CMAKE_BUILD_TYPE=Release ${ARGN})
endfunction()

# build_and_run(FOLDER): builds and runs the consumer that was configured in SCRATCH/FOLDER.
function(build_and_run folder)
  run("${CMAKE_COMMAND}" --build "${SCRATCH}/${folder}")
  run("${SCRATCH}/${folder}/consumer")
endfunction()

# expect_refusal(FOLDER TEXT ARGUMENTS...): the consumer must not configure, with TEXT in the message.
function(expect_refusal folder text)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}" -B "${SCRATCH}/${folder}" -G "${GENERATOR}" ${ARGN}
    RESULT_VARIABLE status
    OUTPUT_QUIET
    ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}") # CMake wraps messages
  string(FIND "${errors}" "${text}" position)
  if(status EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "expected an error with '${text}', but got status ${status} and:\n${errors}")
  endif()
endfunction()
