# Builds the site of pages and API reference. It needs Doxygen and awk, but neither LibTorch nor a compiler.
#
#   cmake -D OUT=<folder> [-D DOXYGEN=<program>] -P docs/site/build.cmake
#
# The site is in OUT/html. docs/README.md has the order of its pages.

cmake_minimum_required(VERSION 3.25)

set(SITE_DIR "${CMAKE_CURRENT_LIST_DIR}")
cmake_path(SET ROOT NORMALIZE "${SITE_DIR}/../..")
string(REGEX REPLACE "/$" "" ROOT "${ROOT}")
if("${OUT}" STREQUAL "")
  message(FATAL_ERROR "[docs] expected the folder for the site, but OUT is empty. Pass -D OUT=<folder>.")
endif()
cmake_path(ABSOLUTE_PATH OUT NORMALIZE)
find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  message(FATAL_ERROR "[docs] expected doxygen in PATH, but it is missing. As root, run: apt-get install doxygen")
endif()
execute_process(COMMAND "${DOXYGEN}" --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
# Doxygen 1.9.8 gave the groups this name, since C++ has modules.
set(TOPICS modules)
if(version VERSION_GREATER_EQUAL 1.9.8)
  set(TOPICS topics)
endif()

file(READ "${ROOT}/CMakeLists.txt" project)
string(REGEX MATCH "VERSION ([0-9.]+)\n +DESCRIPTION \"([^\"]+)\"" match "${project}")
set(PROJECT_VERSION "${CMAKE_MATCH_1}")
set(PROJECT_DESCRIPTION "${CMAKE_MATCH_2}")

# find_links(PAGE TEXT EXTENSIONS RESULT): the files that a page links to, without headings.
function(find_links page text extensions result)
  string(REGEX MATCHALL "\\([^() #:]+\\.(${extensions})\\)" links "${text}")
  set(files "")
  foreach(link IN LISTS links)
    string(REGEX REPLACE "^\\((.*)\\)$" "\\1" file "${link}")
    cmake_path(GET page PARENT_PATH folder)
    cmake_path(APPEND folder "${file}" OUTPUT_VARIABLE file)
    cmake_path(NORMAL_PATH file)
    list(APPEND files "${file}")
  endforeach()
  set(${result} "${files}" PARENT_SCOPE)
endfunction()

# The pages: those that docs/README.md links to, in its order.
file(READ "${ROOT}/docs/README.md" text)
find_links(docs/README.md "${text}" md pages)
list(PREPEND pages README.md docs/README.md)
list(APPEND pages tests/UPSTREAM.md)
list(REMOVE_DUPLICATES pages)
file(GLOB files RELATIVE "${ROOT}" "${ROOT}/*.md" "${ROOT}/docs/*.md" "${ROOT}/examples/*.md"
     "${ROOT}/packages/*/README.md")
foreach(file IN LISTS files)
  if(NOT file IN_LIST pages)
    message(FATAL_ERROR "[docs] docs/README.md must link to every page, but ${file} is not there. Add it.")
  endif()
endforeach()

# The public headers, as paths from the project, and for Doxygen the folders that they are in.
file(GLOB header_folders RELATIVE "${ROOT}" "${ROOT}/include/tessera" "${ROOT}/packages/*/include/tessera")
set(headers "")
set(HEADER_FOLDERS "")
set(INCLUDE_FOLDERS "")
foreach(folder IN LISTS header_folders)
  file(GLOB_RECURSE found RELATIVE "${ROOT}" "${ROOT}/${folder}/*.h")
  list(APPEND headers ${found})
  string(APPEND HEADER_FOLDERS " \"${ROOT}/${folder}\"")
  string(REGEX REPLACE "/tessera$" "" folder "${folder}")
  string(APPEND INCLUDE_FOLDERS " \"${ROOT}/${folder}\"")
endforeach()
file(READ "${SITE_DIR}/modules.dox" modules)
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH module)
  string(REGEX REPLACE "^.*include/tessera/" "" module "${module}")
  string(REPLACE "/" "_" module "${module}")
  if(NOT modules MATCHES "@defgroup module_${module} ")
    message(FATAL_ERROR "[docs] every folder of headers must be a module, but docs/site/modules.dox has no "
                        "module_${module}. Describe it there.")
  endif()
endforeach()

# What links can lead to: pages, headers, sources of examples, and other sources that pages link to.
set(targets "")
set(PAGES "")
set(sources "")
set(pictures "")
foreach(page IN LISTS pages)
  file(READ "${ROOT}/${page}" text)
  string(REGEX MATCH "(^|\n)# ([^\n]+)" match "${text}")
  set(title "${CMAKE_MATCH_2}")
  cmake_path(GET page STEM label)
  if(page STREQUAL docs/README.md)
    set(label docs)
  elseif(page STREQUAL examples/README.md)
    set(label example_programs) # examples.html is Doxygen's list of their sources
  elseif(page MATCHES "^packages/([a-z]+)/README.md$")
    set(label package_${CMAKE_MATCH_1})
  endif()
  string(APPEND targets "${page}\t${label}\t${title}\n")
  string(APPEND PAGES " \"${ROOT}/${page}\"")

  find_links(${page} "${text}" "cpp|h|py" files)
  list(APPEND sources ${files})
  find_links(${page} "${text}" "svg|png" files)
  list(APPEND pictures ${files})
endforeach()
file(GLOB_RECURSE examples RELATIVE "${ROOT}" "${ROOT}/examples/*.cpp" "${ROOT}/examples/*.h")
list(APPEND examples ${sources})
list(REMOVE_DUPLICATES examples)
list(FILTER examples EXCLUDE REGEX "(^|/)include/")
list(SORT examples)
set(commands "")
set(EXAMPLES "")
foreach(example IN LISTS examples)
  string(APPEND commands "/** @example{lineno} ${example} */\n")
  string(APPEND EXAMPLES " \"${ROOT}/${example}\"")
  string(APPEND targets "${example}\t${example}\n")
endforeach()
list(REMOVE_DUPLICATES pictures)
set(PICTURES "")
foreach(picture IN LISTS pictures)
  string(APPEND PICTURES " \"${ROOT}/${picture}\"")
endforeach()
foreach(header IN LISTS headers)
  string(REGEX REPLACE "^.*include/" "" name "${header}")
  string(APPEND targets "${header}\t${name}\n")
endforeach()

file(REMOVE_RECURSE "${OUT}/html") # with pages that there are no more
file(MAKE_DIRECTORY "${OUT}")
file(WRITE "${OUT}/targets.txt" "${targets}")
file(WRITE "${OUT}/examples.dox" "${commands}")
configure_file("${SITE_DIR}/layout.xml.in" "${OUT}/layout.xml" @ONLY)
configure_file("${SITE_DIR}/Doxyfile.in" "${OUT}/Doxyfile" @ONLY)

# Doxygen's own header, with our script and icon.
execute_process(
  COMMAND "${DOXYGEN}" -w html header.html footer.html unused.css WORKING_DIRECTORY "${OUT}" OUTPUT_QUIET
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${OUT}/header.html" header)
string(REPLACE "</head>" "<link rel=\"icon\" href=\"$relpath^logo.svg\"/>
<meta name=\"color-scheme\" content=\"light dark\"/>
<script type=\"text/javascript\" src=\"$relpath^site.js\"></script>
</head>" header "${header}")
file(WRITE "${OUT}/header.html" "${header}")

execute_process(COMMAND "${DOXYGEN}" "${OUT}/Doxyfile" RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "[docs] Doxygen ended with status ${status}. Its warnings above are errors.")
endif()

# In Doxygen 1.9.4 the results of a search are a page of their own in a frame, with a stylesheet of its own. When the
# site is opened from a disk, browsers refuse the frame's access to the page around it.
file(READ "${SITE_DIR}/search.css" style)
file(APPEND "${OUT}/html/search/search.css" "${style}")
file(READ "${OUT}/html/search/search.js" text)
string(REPLACE "'parent.searchBox.CloseResultsWindow()'"
               "'try { parent.searchBox.CloseResultsWindow() } catch (error) {}'" text "${text}")
file(WRITE "${OUT}/html/search/search.js" "${text}")

# In the navigation tree, modules list their classes without the namespace.
file(GLOB scripts "${OUT}/html/group__*.js")
foreach(script IN LISTS scripts)
  file(READ "${script}" text)
  string(REGEX REPLACE "\\[ \"tessera::([a-z_]+::)*" "[ \"" text "${text}")
  file(WRITE "${script}" "${text}")
endforeach()

# Doxygen makes an empty page about each Markdown file, beside the page that the file has, and a search finds it.
file(GLOB scripts "${OUT}/html/search/*.js")
foreach(script IN LISTS scripts)
  file(READ "${script}" text)
  string(REGEX REPLACE "\n[^\n]*_8(md|dox)\\.html[^\n]*" "" text "${text}")
  file(WRITE "${script}" "${text}")
endforeach()
file(GLOB files "${OUT}/html/*_8md.html" "${OUT}/html/*_8dox.html")
file(REMOVE ${files})
# Links to these pages become plain text, and so do those to a list of classes that a page does not have.
file(GLOB pages "${OUT}/html/*.html")
foreach(page IN LISTS pages)
  file(READ "${page}" text)
  string(REGEX REPLACE "<a [^>]*href=\"[a-zA-Z_]*_8md\\.html\"[^>]*>([^<]*)</a>" "\\1" new_text "${text}")
  if(NOT text MATCHES "(id|name)=\"nested-classes\"")
    string(REGEX REPLACE "<a href=\"#nested-classes\">Classes</a> &#124;" "" new_text "${new_text}")
  endif()
  if(NOT text STREQUAL new_text)
    file(WRITE "${page}" "${new_text}")
  endif()
endforeach()
