# SPDX-License-Identifier: Apache-2.0
# Our pages as Doxygen wants them. Called with highlight.awk and two variables:
#
#   root      the project's folder
#   targets   a file with a line for each file that has a page in the site: path, label and, if it is
#             one of the Markdown pages, its title, with tabs between them
#
# A link to a file with a page, or to a heading of it, becomes a link to its label. A link to another
# file becomes plain text. A picture becomes an <img> of the file beside the page. Shell and CMake code is highlighted here, because Doxygen does not do it.
# Every page but the two first gets a table of contents, and each ends with links to its neighbours.
# Headings lose the backticks of `code`, which Doxygen 1.9.4 would show as tags in both lists of headings.

BEGIN {
  while ((getline line < targets) > 0) {
    split(line, fields, "\t")
    label_of[fields[1]] = fields[2]
    if (fields[3] != "") {
      pages[++num_pages] = fields[1]
      number_of[fields[1]] = num_pages
      title_of[fields[1]] = fields[3]
    }
  }
}

FNR == 1 {
  page = substr(FILENAME, length(root) + 2)
  folder = page
  sub(/[^\/]*$/, "", folder)
}

# As GitHub names a heading.
function slug(heading) {
  gsub(/\]\([^)]*\)/, "", heading)
  heading = tolower(heading)
  gsub(/[^a-z0-9 _-]/, "", heading)
  gsub(/ /, "-", heading)
  return heading
}

# The label of what a page links to, or "" if the site does not have it.
function label(target,    path, heading) {
  path = heading = target
  sub(/#.*/, "", path)
  sub(/^[^#]*/, "", heading)
  path = path == "" ? page : folder path
  while (sub(/[^\/]+\/\.\.\//, "", path)) {
  }
  if (label_of[path] == "") {
    return ""
  }
  return label_of[path] (heading == "" ? "" : "_" substr(heading, 2))
}

# The links of one line. Those in `code` stay as they are. To Doxygen, an apostrophe ends `code` that
# does not begin with two backticks.
function links(line,    result, link, text, target, name) {
  result = ""
  while (match(line, /`[^`]*`|\[[^][]*\]\([^) ]*\)|\]\([^) ]*\)/)) {
    link = substr(line, RSTART, RLENGTH)
    result = result substr(line, 1, RSTART - 1)
    line = substr(line, RSTART + RLENGTH)
    if (link ~ /^`/) {
      result = result (link ~ /'/ ? "`" link "`" : link)
      continue
    }
    text = target = link
    sub(/\]\(.*/, "", text)
    sub(/^\[/, "", text)
    sub(/.*\]\(/, "", target)
    sub(/\)$/, "", target)
    name = label(target)
    if (result ~ /!$/) {
      sub(/!$/, "", result)
      sub(/.*\//, "", target)
      gsub(/"/, "\\&quot;", text)
      result = result "<img src=\"" target "\" alt=\"" text "\"/>"
    } else if (target ~ /^https?:/) {
      result = result link
    } else if (name != "") {
      result = result "[" text "](@ref " name ")"
    } else {
      result = result text
    }
  }
  return result line
}

/^```/ && !in_code {
  in_code = 1
  language = substr($0, 4)
  if (language == "sh" || language == "cmake") {
    print "@htmlonly[block]<div class=\"fragment\">"
  } else {
    print language == "python" ? "```{.py}" : $0
  }
  next
}

/^```/ {
  in_code = 0
  print language == "sh" || language == "cmake" ? "</div>@endhtmlonly" : $0
  next
}

in_code {
  print language == "sh" || language == "cmake" ? "<div class=\"line\">" highlight(language, $0) "</div>" : $0
  next
}

/^#/ {
  title = $0
  gsub(/`/, "", title)
}

/^# / {
  print links(title) " {#" label_of[page] "}"
  if (number_of[page] > 2) {
    print "\n[TOC]"
  }
  next
}

# Headings of the start page stay out of the navigation tree, where they would stand before the pages.
/^##+ / {
  match($0, /^#+/)
  level = RLENGTH
  heading = substr(title, level + 2)
  if (number_of[page] == 1) {
    print "<h" level - 1 ">@anchor " label_of[page] "_" slug(heading) " " links(heading) "</h" level - 1 ">"
  } else {
    print links(title) " {#" label_of[page] "_" slug(heading) "}"
  }
  next
}

{
  print links($0)
}

function neighbour(path, class) {
  return path == "" ? "" : "<span class=\"" class "\">[" title_of[path] "](@ref " label_of[path] ")</span>"
}

END {
  print "\n<div class=\"neighbours\">" neighbour(pages[number_of[page] - 1], "previous") \
    neighbour(pages[number_of[page] + 1], "next") "</div>"
}
