# The README's C++ snippet is the quick start, which is built and run.
#   cmake -D ROOT=<project> -P check_readme.cmake
file(READ "${ROOT}/README.md" readme)
file(READ "${ROOT}/examples/quick_start.cpp" example)
string(FIND "${example}" "#include <tessera" begin)
string(SUBSTRING "${example}" ${begin} -1 snippet)
string(FIND "${readme}" "```cpp\n${snippet}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "[check_readme] expected README.md to hold examples/quick_start.cpp from its first"
                      " #include <tessera...> on, in one ```cpp block, but it does not. Copy it there.")
endif()
