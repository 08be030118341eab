# Tests check_docs.cmake on small pages in SCRATCH, correct and wrong ones.

cmake_minimum_required(VERSION 3.25)

# check(RESULT [ARGUMENTS...]): checks README.md in SCRATCH. RESULT is "passes" or a part of the expected message.
function(check result)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -D "ROOT=${SCRATCH}" ${ARGN} -P "${CMAKE_CURRENT_LIST_DIR}/check_docs.cmake"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps messages
  file(READ "${SCRATCH}/README.md" page)
  if(result STREQUAL "passes")
    if(NOT status EQUAL 0)
      message(SEND_ERROR "expected this page to pass, but got:\n${output}\n---\n${page}")
    endif()
  else()
    string(FIND "${output}" "${result}" position)
    if(status EQUAL 0 OR position EQUAL -1)
      message(SEND_ERROR "expected this page to fail with '${result}', but got:\n${output}\n---\n${page}")
    endif()
  endif()
endfunction()

# expect(RESULT PAGE [ARGUMENTS...]): writes PAGE to README.md and checks it.
function(expect result page)
  file(WRITE "${SCRATCH}/README.md" "${page}")
  check("${result}" ${ARGN})
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
file(WRITE "${SCRATCH}/a.cpp" "#include <a>\n  // snippet: sum\n  int a[] = {1, 2};\n\n    a[0] += 1;  // \"\\n\"; x\n  // end snippet\n"
  "// snippet: two\nint b;\n// end snippet\n  int hidden;\n  // snippet: two\n  int c;\n  // end snippet\n")
file(WRITE "${SCRATCH}/a.py" "# snippet: load\nx = load()\n# end snippet\n")
file(WRITE "${SCRATCH}/open.cpp" "// snippet: open\nint a;\n")
file(WRITE "${SCRATCH}/nested.cpp" "// snippet: outer\n// snippet: inner\n// end snippet\n")
set(sum "int a[] = {1, 2};\n\n  a[0] += 1;  // \"\\n\"; x\n")

# Code.
expect(passes "One\n\n<!-- snippet: a.cpp sum -->\n```cpp\n${sum}```\n\nTwo [x; y)\n")
expect(passes "<!-- snippet: a.cpp two -->\n```cpp\nint b;\nint c;\n```\n")
expect(passes "<!-- snippet: a.py load -->\n```python\nx = load()\n```\n")
expect(passes "```sh\n./run test\n```\n\n```text\n3 ]( nothing.md\n```\n\n```\na = b\n```\n")
expect(passes "<!-- not ours: Keras -->\n```python\nx = anything\n```\n")
expect("README.md:3: code that no test runs" "One\n\n```cpp\nint a;\n```\n")
expect("README.md:1: code that no test runs" "```python\nx\n```\n")
expect("README.md:1: code that no test runs" "```cmake\nx()\n```\n")
expect("README.md:4: code that no test runs" "<!-- not ours: Keras -->\n\n\n```c++\nint a;\n```\n")
expect("README.md:3: the code differs from 'sum' in a.cpp" "One\n<!-- snippet: a.cpp sum -->\n```cpp\nint a[] = {1, 2};\n```\n")
expect("README.md:2: the code differs from 'two'" "<!-- snippet: a.cpp two -->\n```cpp\nint b;\nint c;\n\n```\n")
expect("README.md:2: there is no file b.cpp" "<!-- snippet: b.cpp sum -->\n```cpp\n${sum}```\n")
expect("README.md:2: a.cpp has no snippet 'su'" "<!-- snippet: a.cpp su -->\n```cpp\n${sum}```\n")
expect("in open.cpp the snippet 'open' has no end" "<!-- snippet: open.cpp open -->\n```cpp\nint a;\n```\n")
expect("in nested.cpp the snippet 'outer' has no end before 'inner'" "<!-- snippet: nested.cpp outer -->\n```cpp\n```\n")
expect("README.md:2: expected code after" "<!-- snippet: a.cpp sum -->\n\n```sh\n```\n")
expect("README.md:1: expected code after" "<!-- not ours: Keras -->\n")
expect("README.md:1: expected <!-- snippet: FILE NAME -->" "<!-- snippet: a.cpp -->\n```cpp\n${sum}```\n")
expect("README.md:2: begin code with" "- one\n  ```cpp\n  int a;\n  ```\n")
expect("README.md:1: begin code with" "~~~cpp\nint a;\n~~~\n")
expect("README.md:2: the code has no end" "One\n```sh\nx\n")

# Docstrings.
set(docstring "\n// snippet: a.cpp sum\n/// Adds:\n///\n///   int a[] = {1, 2};\n///\n///     a[0] += 1;  // \"\\n\"; x\n///\n/// Well.\n")
file(WRITE "${SCRATCH}/include/b/a.h" "#pragma once\n${docstring}")
expect(passes "One\n")
string(REPLACE "1, 2" "1, 3" other "${docstring}")
file(WRITE "${SCRATCH}/include/b/a.h" "${other}")
expect("include/b/a.h: no docstring has 'sum' as it is in a.cpp" "One\n")
string(REPLACE "a.cpp sum" "a.cpp su" other "${docstring}")
file(WRITE "${SCRATCH}/include/b/a.h" "${other}")
expect("include/b/a.h: a.cpp has no snippet 'su'" "One\n")
file(REMOVE_RECURSE "${SCRATCH}/include")

# Links.
file(WRITE "${SCRATCH}/docs/other.md" "# The `other` page, 2nd\n\n```sh\n# no heading\n```\n\n[up](../README.md) and [down](other.md#the-other-page-2nd)\n")
expect(passes "# Top\n[a](docs/other.md), [b](a.cpp)[c](#top) [d](https://nowhere/x)\n[e](docs/other.md#the-other-page-2nd) `a[0](no)`\n")
expect("README.md:2: links to docs/none.md, but there is no such file" "One\n[a](a.cpp) [b](docs/none.md)\n")
expect("README.md:2: links to #bottom, but the page's headings are top" "# Top\n[a](#bottom)\n")
expect("README.md:1: links to docs/other.md#no-heading, but" "[a](docs/other.md#no-heading)\n")
expect("README.md:1: links to a.cpp#top, but only Markdown" "[a](a.cpp#top)\n")
file(WRITE "${SCRATCH}/docs/other.md" "One\n\n[up](README.md)\n")
expect("docs/other.md:3: links to README.md, but there is no such file" "# Top\n")
file(REMOVE "${SCRATCH}/docs/other.md")

# UPDATE copies the code into the page and changes nothing else.
set(before "a; [b\n\n<!-- snippet: a.cpp sum -->\n```cpp\nold\n```\n\\ end\n")
expect(passes "${before}" -D UPDATE=ON)
check(passes)
file(READ "${SCRATCH}/README.md" page)
string(REPLACE "old\n" "${sum}" after "${before}")
if(NOT page STREQUAL after)
  message(SEND_ERROR "expected the update to give\n${after}\nbut got\n${page}")
endif()
expect("a.cpp has no snippet 'none'" "<!-- snippet: a.cpp none -->\n```cpp\nold\n```\n" -D UPDATE=ON)
