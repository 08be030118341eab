# SPDX-License-Identifier: Apache-2.0
# Shell and CMake code as HTML with the classes of Doxygen's own code.

function escape(text) {
  gsub(/&/, "\\&amp;", text)
  gsub(/</, "\\&lt;", text)
  gsub(/>/, "\\&gt;", text)
  gsub(/"/, "\\&quot;", text)
  return text
}

function span(class, text) {
  return "<span class=\"" class "\">" escape(text) "</span>"
}

# One line of code. A command is the first word of a line, and what follows | or &&.
function highlight(language, line,    result, token, command, expects_command) {
  command = language == "cmake" ? "^[A-Za-z_][A-Za-z0-9_]*[ ]*\\(" : "^[^ \t\"'#$=|&;]+"
  expects_command = 1
  result = ""
  while (line != "") {
    if (match(line, /^[ \t]+/)) {
      token = substr(line, 1, RLENGTH)
      result = result token
    } else if (match(line, /^#.*/)) {
      token = line
      result = result span("comment", token)
    } else if (match(line, /^"[^"]*"/) || match(line, /^'[^']*'/)) {
      token = substr(line, 1, RLENGTH)
      result = result span("stringliteral", token)
      expects_command = 0
    } else if (match(line, /^\$[{(]?[A-Za-z_:][A-Za-z0-9_:]*[})]?/)) {
      token = substr(line, 1, RLENGTH)
      result = result span("variable", token)
      expects_command = 0
    } else if (language == "sh" && expects_command && match(line, /^[A-Za-z_][A-Za-z0-9_]*=[^ ]*/)) {
      token = substr(line, 1, RLENGTH)
      result = result span("variable", token)
    } else if (expects_command && match(line, command)) {
      token = substr(line, 1, RLENGTH)
      if (language == "cmake") {
        sub(/[ ]*\($/, "", token)
      }
      result = result span("keyword", token)
      expects_command = 0
    } else if (language == "sh" && match(line, /^(\|\|?|&&|;)/)) {
      token = substr(line, 1, RLENGTH)
      result = result escape(token)
      expects_command = 1
    } else if (language == "sh" ? match(line, /^--?[A-Za-z][A-Za-z0-9_-]*/) : match(line, /^[A-Z][A-Z_]+/)) {
      token = substr(line, 1, RLENGTH)
      result = result span("keywordtype", token)
    } else {
      match(line, /^([A-Za-z0-9_.\/:@%+,-]+|.)/)
      token = substr(line, 1, RLENGTH)
      result = result escape(token)
    }
    line = substr(line, length(token) + 1)
  }
  return result == "" ? " " : result
}
