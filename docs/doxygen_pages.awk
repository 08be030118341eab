# SPDX-License-Identifier: Apache-2.0
# Links of our pages as Doxygen wants them: headings have names that differ between pages, and what
# is not part of the reference is not linked to. Names of headers become links by themselves.

# docs/README.md is the page "docs", since labels of pages must differ.
function page_of(path) {
  if (path ~ /docs\/README\.md$/ || (path == "README.md" && FILENAME ~ /docs\/[^\/]*$/)) {
    return "docs"
  }
  sub(/.*\//, "", path)
  sub(/\.md$/, "", path)
  return path
}

# As GitHub names a heading.
function slug(heading) {
  gsub(/\]\([^)]*\)/, "", heading)
  heading = tolower(heading)
  gsub(/[^a-z0-9 _-]/, "", heading)
  gsub(/ /, "-", heading)
  return heading
}

# The links of one line; those in `code` stay as they are.
function links(line,    result, link, text, target, page, name) {
  result = ""
  while (match(line, /`[^`]*`|\[[^][]*\]\([^) ]*\)|\]\([^) ]*\)/)) {
    link = substr(line, RSTART, RLENGTH)
    result = result substr(line, 1, RSTART - 1)
    line = substr(line, RSTART + RLENGTH)
    if (link ~ /^`/) {
      result = result link
      continue
    }
    text = target = link
    sub(/\]\(.*/, "", text)
    sub(/^\[/, "", text)
    sub(/.*\]\(/, "", target)
    sub(/\)$/, "", target)
    if (target ~ /^https?:/ || result ~ /!$/) {
      result = result link
    } else if (target ~ /#/) {
      page = name = target
      sub(/#.*/, "", page)
      sub(/.*#/, "", name)
      result = result "[" text "](#" page_of(page == "" ? FILENAME : page) "_" name ")"
    } else if (target ~ /^((docs\/|\.\.\/)?[A-Za-z]+)\.md$/) {
      result = result "[" text "](#" page_of(target) ")"
    } else {
      result = result text
    }
  }
  return result line
}

/^```/ {
  in_code = !in_code
}

!in_code && /^#+ / {
  name = page_of(FILENAME)
  if ($0 !~ /^# /) {
    heading = $0
    sub(/^#+ +/, "", heading)
    name = name "_" slug(heading)
  }
  print $0 " {#" name "}"
  next
}

{
  print in_code || /^```/ ? $0 : links($0)
}
