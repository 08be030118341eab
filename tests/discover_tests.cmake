# Lists the tests of a GoogleTest binary when ctest starts. ctest has one entry per source file, named after its path in
# tests/ or packages/ without _test.cpp, like training/fit. With one entry per test, loading LibTorch so often would take
# minutes.

cmake_policy(VERSION 3.25) # ctest includes this file without a policy version

# discover_tests(PROGRAM TIMEOUT LABELS EMULATOR LEFT_OUT)
#
# If the command EMULATOR runs the program, for another processor, the tests LEFT_OUT do not run, and the others find the
# command in TESSERA_EMULATOR.
function(discover_tests program timeout labels emulator left_out)
  if(NOT EXISTS "${program}")
    add_test("${program}" "${program}") # fails with the name of the missing program
    return()
  endif()
  set(list "${program}.tests.json")
  if(NOT EXISTS "${list}" OR "${program}" IS_NEWER_THAN "${list}")
    file(REMOVE "${list}")
    execute_process(
      COMMAND ${emulator} "${program}" --gtest_list_tests "--gtest_output=json:${list}"
      OUTPUT_QUIET
      ERROR_VARIABLE errors
      RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      file(REMOVE "${list}")
      message(FATAL_ERROR "${program} --gtest_list_tests failed (${status}):\n${errors}")
    endif()
  endif()

  # The name of a suite is followed by the name of its first test, and the name of a test by its file.
  file(READ "${list}" text)
  string(REPLACE "\\/" "/" text "${text}")
  string(REGEX MATCHALL "\"(name|file)\": \"[^\"]*\"" entries "${text}")
  set(files "")
  foreach(entry IN LISTS entries)
    string(REGEX MATCH "\"(name|file)\": \"(.*)\"" entry "${entry}")
    if(CMAKE_MATCH_1 STREQUAL "name")
      if(last STREQUAL "name")
        set(suite "${name}")
      endif()
      set(name "${CMAKE_MATCH_2}")
    else()
      # With ccache, the paths of sources may be those of another clone.
      string(REGEX REPLACE "(_test)?\\.cpp$" "" file "${CMAKE_MATCH_2}")
      string(REGEX REPLACE "^(.*/)?packages/([a-z]+)/tests/" "\\2/" file "${file}")
      string(REGEX REPLACE "^(.*/)?tests/" "" file "${file}")
      list(APPEND files "${file}")
      list(APPEND "tests_of_${file}" "${suite}.${name}")
    endif()
    set(last "${CMAKE_MATCH_1}")
  endforeach()

  list(REMOVE_DUPLICATES files)
  list(JOIN emulator " " command)
  foreach(file IN LISTS files)
    list(JOIN "tests_of_${file}" ":" filter)
    set(environment "")
    if(emulator)
      string(APPEND filter "-${left_out}")
      set(environment "TESSERA_EMULATOR=${command}")
    endif()
    add_test("${file}" ${emulator} "${program}" "--gtest_filter=${filter}" --gtest_brief=1)
    set_tests_properties("${file}" PROPERTIES TIMEOUT "${timeout}" LABELS "${labels}" ENVIRONMENT "${environment}")
  endforeach()
endfunction()
