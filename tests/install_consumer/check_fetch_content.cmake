# Configures a project that gets Tessera from SOURCE with FetchContent, and builds one library of it. To build all of
# it takes as long as Tessera's own build, and uses nothing that is different from the other consumers. Debug compiles
# fastest.
set(required GENERATOR LIBTORCH SCRATCH SOURCE TARGET)
include("${CMAKE_CURRENT_LIST_DIR}/consume.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/fetch_content/CMakeLists.txt" "${CMAKE_CURRENT_LIST_DIR}/main.cpp"
     DESTINATION "${SCRATCH}/project")
configure("${SCRATCH}/project" build -D "FETCHCONTENT_SOURCE_DIR_TESSERA=${SOURCE}" -D "CMAKE_PREFIX_PATH=${LIBTORCH}"
          -D "CMAKE_PROJECT_consumer_INCLUDE=${CMAKE_CURRENT_LIST_DIR}/subproject_checks.cmake" -D CMAKE_BUILD_TYPE=Debug)
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build" --target ${TARGET})

# By default, the consumer's install installs nothing of Tessera.
file(GLOB_RECURSE scripts "${SCRATCH}/build/_deps/tessera-build/cmake_install.cmake")
foreach(script IN LISTS scripts)
  file(READ "${script}" text)
  if(text MATCHES "tesseraConfig")
    message(FATAL_ERROR "${script} installs Tessera, but TESSERA_INSTALL is off in a subproject")
  endif()
endforeach()
