# Fails if the library needs LibTorch, or shows names that are not of its interface:
# cmake -D LIBRARY=<libtessera_serving.so> -D READELF=<readelf> -P check_library.cmake

cmake_minimum_required(VERSION 3.25)

execute_process(
  COMMAND "${READELF}" --dynamic --wide "${LIBRARY}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "NEEDED[^\n]*" needed "${dynamic}")
if(NOT needed)
  message(FATAL_ERROR "expected the libraries that ${LIBRARY} needs, but readelf shows none:\n${dynamic}")
endif()
foreach(library IN LISTS needed)
  if(NOT library MATCHES "\\[(libhwy|libstdc\\+\\+|libm|libgcc_s|libc|libasan|libubsan|libtsan|ld-linux[^.]*)\\.so")
    message(FATAL_ERROR "expected a library that needs only libhwy and the language's libraries, but got: ${library}")
  endif()
endforeach()
execute_process(
  COMMAND "${READELF}" --dyn-syms --wide --demangle "${LIBRARY}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "," symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")
set(count 0)
foreach(symbol IN LISTS symbols)
  if(symbol MATCHES "(GLOBAL|WEAK) +DEFAULT +[0-9]+ +(.*)$")
    math(EXPR count "${count} + 1")
    if(NOT CMAKE_MATCH_2 MATCHES "^tessera::serving::((Pipeline|RawColumns|Reader|Server|Version)::|use_short_time_slices)|^tessera_(error|pipeline|reader|version)")
      message(FATAL_ERROR "expected only names of the interface, but the library shows: ${CMAKE_MATCH_2}")
    endif()
  endif()
endforeach()
if(count EQUAL 0)
  message(FATAL_ERROR "expected names of the interface, but the library shows none")
endif()
file(SIZE "${LIBRARY}" bytes)
message(STATUS "${count} names, ${bytes} bytes")
