# Writes a source file with the text of the page: cmake -D PAGE=<page.html> -D OUTPUT=<page.cpp> -P embed_page.cmake

cmake_minimum_required(VERSION 3.25)

file(READ "${PAGE}" text)
file(WRITE "${OUTPUT}" "// Made from page.html.
#include <string_view>

namespace tessera::serving {

std::string_view page() {
  return R\"page_html(${text})page_html\";
}

}  // namespace tessera::serving
")
