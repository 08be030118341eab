# Shows that check_layering.cmake can fail: one small tree in SCRATCH for each rule, broken or kept.

cmake_minimum_required(VERSION 3.25)

# expect(RESULT FILE LINE [OTHER]): what the check says of a tree where the third line of FILE is
# LINE and OTHER exists; RESULT is "passes" or a part of the message, without its "includes".
function(expect result file line)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/${file}" "// [a; half-open interval)\n\n${line}\n")
  foreach(other IN LISTS ARGN)
    file(WRITE "${SCRATCH}/${other}" "\n")
  endforeach()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -D "ROOT=${SCRATCH}" -P "${CMAKE_CURRENT_LIST_DIR}/check_layering.cmake"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # CMake wraps messages
  if(result STREQUAL "passes")
    if(NOT status EQUAL 0)
      message(SEND_ERROR "expected ${file} with ${line} to pass, but got:\n${output}")
    endif()
  else()
    if(NOT result MATCHES "^parses")
      string(PREPEND result "includes ")
    endif()
    string(FIND "${output}" "${file}:3: ${result}" position)
    if(status EQUAL 0 OR position EQUAL -1)
      message(SEND_ERROR "expected ${file} with ${line} to fail with '${result}', but got:\n${output}")
    endif()
  endif()
endfunction()

# Private and public headers to the right.
expect("optim/row_rule.h, which" "src/kernels/a.cpp" "#include \"optim/row_rule.h\"")
expect("tessera/nest.h, which" "src/kernels/a.cpp" "#include <tessera/nest.h>")
expect("src/engine.h, which" "optim/a.cpp" "#include \"src/engine.h\"")
expect("tessera/nest.h, which" "include/tessera/optim/a.h" "#include <tessera/nest.h>")
expect("serialization/a.h, which" "src/a.cpp" "#include \"serialization/a.h\"")
expect("tessera/serialization/a.h, which" "include/tessera/a.h" "#include <tessera/serialization/a.h>")
expect("layers/a.h, which" "serialization/a.cpp" "  #  include \"layers/a.h\" // [batch")
expect("tessera/layers/a.h, which" "src/strategies/a.cpp" "#include <tessera/layers/a.h>")
expect("tests/a.h, which" "layers/a.cpp" "#include \"tests/a.h\"")
expect("tessera/tessera.h, which" "layers/a.cpp" "#include <tessera/tessera.h>")
expect("layers/b.h, which" "src/a.cpp" "#include \"../layers/b.h\"" "layers/b.h")

# To the left, beside, and elsewhere.
expect(passes "optim/a.cpp" "#include \"src/kernels/kernels.h\"")
expect(passes "src/a.cpp" "#include <tessera/optim/schedule.h>")
expect(passes "src/strategies/a.cpp" "#include \"src/engine.h\"")
expect(passes "src/kernels/a.cpp" "#include \"b.h\"" "src/kernels/b.h")
expect(passes "serialization/a.cpp" "#include <tessera/serialization/a.h>")
expect(passes "layers/a.cpp" "#include \"serialization/a.h\"")
expect(passes "layers/a.cpp" "// #include <tessera/tessera.h>")
expect(passes "src/a.cpp" "#include <torch/nn/module.h>")

# LibTorch in kernels, its umbrella headers anywhere, fmt in public headers.
expect("ATen/core/Tensor.h of LibTorch" "src/kernels/a.h" "#include <ATen/core/Tensor.h>")
expect("c10/util/Exception.h of LibTorch" "src/kernels/a.h" "#include <c10/util/Exception.h>")
expect("torch/nn/module.h of LibTorch" "src/kernels/a.h" "#include \"torch/nn/module.h\"")
expect("torch/torch.h, which takes" "layers/a.cpp" "#include <torch/torch.h>")
expect("torch/all.h, which takes" "include/tessera/a.h" "#include <torch/all.h>")
expect(passes "include/tessera/tessera.h" "#include <torch/torch.h>")
expect("fmt/format.h in a public" "include/tessera/a.h" "#include <fmt/format.h>")
expect(passes "src/a.cpp" "#include <fmt/format.h>")

# JSON text has one door.
foreach(line IN ITEMS "const Json json = Json::parse(text);" "nlohmann::json::parse(file);"
                      "  nlohmann::ordered_json::sax_parse (begin, end, &reader);" "/// from_json(Json::parse(text))"
                      "if (json::accept(text)) {" "stream >> json;")
  expect("parses JSON" "layers/a.cpp" "${line}")
endforeach()
expect("parses JSON" "examples/a.cpp" "auto run = Json::parse(file);")
expect("parses JSON" "include/tessera/a.h" "Json::parse(text)")
expect(passes "optim/json_text.cpp" "Json::sax_parse(begin, end, this);")
expect(passes "layers/a.cpp" "const Json json = parse_json(text);")
expect(passes "layers/a.cpp" "  parser->parse(text);")
