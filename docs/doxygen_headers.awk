# SPDX-License-Identifier: Apache-2.0
# Our comments as Doxygen wants them, line by line:
#
#   /// Errors:  ...          a section of its own
#   ///   weight -= ...       after an empty line: a formula or code, four spaces deep
#   x = {};  // [batch]       documents x
#   // ...                    between empty lines: about the file
#   TORCH_MODULE(Layer);      the class that it stands for

function indentation(text) {
  match(text, /^ */)
  return RLENGTH
}

# A block of plain comments is held back until it is clear what follows it.
function release(prefix,    i) {
  for (i = 1; i <= held; ++i) {
    line = block[i]
    if (prefix != "") {
      sub(/^\/\//, i == 1 ? "/// @about_file" : "///", line)
      line = comment(line)
    }
    print line
  }
  held = 0
}

# One line of documentation.
function comment(line,    text, start) {
  match(line, /^ *\/\/\//)
  start = substr(line, 1, RLENGTH)
  text = substr(line, RLENGTH + 1)
  if (text ~ /^ *$/) {
    after_empty = 1
    in_code = 0
    return line
  }
  if ((after_empty || in_code) && indentation(text) >= 3) {
    in_code = 1
    after_empty = 0
    return start "    " text
  }
  in_code = 0
  after_empty = 0
  if (match(text, /^ (Shapes|Errors|Range|Slots|Source|Differs|Parameters|Memory|Does not promise): +/)) {
    name = text
    sub(/:.*/, "", name)
    sub(/^ /, "", name)
    text = " @labelled{" name "} " substr(text, RLENGTH + 1)
  }
  return start text
}

/^\/\/( |$)/ && (held || previous ~ /^$/) && NR > 1 {
  block[++held] = $0
  previous = $0
  next
}

{
  if (held) {
    release($0 ~ /^$/ ? "file" : "")
    after_empty = in_code = 0
  }
  if ($0 ~ /^ *\/\/\//) {
    if (previous !~ /^ *\/\/\//) {
      after_empty = in_code = 0
    }
    print comment($0)
  } else {
    line = $0
    if (match(line, /^TORCH_MODULE\(.*\);$/)) {
      name = substr(line, 14, RLENGTH - 15)
      line = "/** Holds a " name "Impl, whose functions are called by ->. Copies hold the same one. */ class " name \
        " : public torch::nn::ModuleHolder<" name "Impl> {};"
    }
    if (line ~ /;  \/\/ / && line !~ /NOLINT/) {
      sub(/;  \/\/ /, ";  ///< ", line)
    }
    print line
  }
  previous = $0
}

END {
  release("")
}
