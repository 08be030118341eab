# SPDX-License-Identifier: Apache-2.0
# Our comments as Doxygen wants them, line by line:
#
#   /// Errors:  ...          a section of its own
#   ///   weight -= ...       after an empty line: a formula, four spaces deep
#   ///   call(...);          after an empty line: C++ code, if a line of it ends like a statement
#   x = {};  // [batch]       documents x
#   // ...                    between empty lines: about the file
#   TORCH_MODULE(Layer);      the class that it stands for
#   namespace tessera {       begins what the header adds to the module of its folder
#   private:                  begins what the reference does not have, also friends and nested classes
#   TESSERA_FIELDS(a, b)      left out, and so are the macros behind it
#   template <>               begins a specialization, which the reference does not have either

/^ *TESSERA_(OPTIMIZER_)?FIELDS\(/ || /^#define TESSERA_(NEXT|NO|SCAN|VISIT)_/ {
  is_macro = 1
}

is_macro {
  is_macro = /^#/ ? /\\$/ : !/\)$/
  next
}

FNR == 1 {
  module = FILENAME
  sub(/.*\/include\/tessera\//, "", module)
  sub(/\/?[^\/]*$/, "", module)
  gsub(/\//, "_", module)
}

function indentation(text) {
  match(text, /^ */)
  return RLENGTH
}

# Indented lines of a comment are held back until it is clear if they are code.
function release_indented(    i, slashes) {
  slashes = indented[1]
  sub(/\/\/\/.*/, "///", slashes)
  if (is_code) {
    print slashes " @code{.cpp}"
  }
  for (i = 1; i <= num_indented; ++i) {
    line = indented[i]
    sub(/\/\/\/   /, is_code ? "/// " : "///     ", line)
    print line
  }
  if (is_code) {
    print slashes " @endcode"
  }
  num_indented = is_code = 0
}

function write(line) {
  if (num_indented) {
    release_indented()
  }
  print line
}

# A block of plain comments is held back until it is clear what follows it.
function release_block(prefix,    i) {
  for (i = 1; i <= held; ++i) {
    line = block[i]
    if (prefix == "") {
      write(line)
    } else {
      sub(/^\/\//, i == 1 ? "/// @about_file" : "///", line)
      write_comment(line)
    }
  }
  held = 0
}

# One line of documentation.
function write_comment(line,    text, start, name) {
  match(line, /^ *\/\/\//)
  start = substr(line, 1, RLENGTH)
  text = substr(line, RLENGTH + 1)
  if (text ~ /^ *$/) {
    after_empty = 1
    in_indented = 0
    write(line)
    return
  }
  if ((after_empty || in_indented) && indentation(text) >= 3) {
    in_indented = 1
    after_empty = 0
    indented[++num_indented] = line
    is_code = is_code || text ~ /( = [^:]*|[])}]);( *\/\/.*)?$/
    return
  }
  in_indented = 0
  after_empty = 0
  if (match(text, /^ (Shapes|Errors|Range|Slots|Source|Differs|Parameters|Memory): +/)) {
    name = text
    sub(/:.*/, "", name)
    sub(/^ /, "", name)
    text = " @labelled{" name "} " substr(text, RLENGTH + 1)
  }
  write(start text)
}

# What ends a private section: another one, or the end of the class.
private_indentation && indentation($0) <= private_indentation && /^ *(public:|protected:|};)/ {
  $0 = "/** @endcond */ " $0
  private_indentation = 0
}

/^ +private:$/ && !private_indentation {
  private_indentation = indentation($0)
  $0 = $0 " /** @cond */"
}

specialized && (/^}/ || /{};$/) {
  $0 = $0 " /** @endcond */"
  specialized = 0
}

/^template <>$/ {
  $0 = "/** @cond */ " $0
  specialized = 1
}

/^\/\/( |$)/ && (held || previous ~ /^$/) && NR > 1 {
  block[++held] = $0
  previous = $0
  next
}

{
  if (held) {
    release_block($0 ~ /^$/ ? "file" : "")
    after_empty = in_indented = 0
  }
  if ($0 ~ /^ *\/\/\//) {
    if (previous !~ /^ *\/\/\//) {
      after_empty = in_indented = 0
    }
    write_comment($0)
  } else {
    line = $0
    if (match(line, /^TORCH_MODULE\(.*\);$/)) {
      name = substr(line, 14, RLENGTH - 15)
      line = "/** Holds a " name "Impl, whose functions are called by ->. Copies hold the same one. */ class " name \
        " : public torch::nn::ModuleHolder<" name "Impl> {};"
    }
    if (line ~ /;  \/\/ /) {
      sub(/;  \/\/ /, ";  ///< ", line)
    }
    if (line ~ /^(}  \/\/ )?namespace / && line !~ /namespace (detail|torch|c10d)/) {
      line = line ~ /^}/ ? "/** @} */ " line : line " /** @begin_module{module_" module "} */"
    }
    write(line)
  }
  previous = $0
}

END {
  release_block("")
}
