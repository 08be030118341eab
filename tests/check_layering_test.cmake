# Tests check_layering.cmake on small trees in SCRATCH, each of which keeps or breaks one rule.

cmake_minimum_required(VERSION 3.25)

# expect(RESULT FILE LINE [OTHER]): checks a tree in which the third line of FILE is LINE, and OTHER exists.
# RESULT is "passes" or a part of the expected message.
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
    if(result MATCHES ", which|^.*in a public$|^[^ ]* of LibTorch")
      string(PREPEND result "includes ")
    endif()
    string(REGEX MATCH "${file}:[13]: " location "${output}")
    string(FIND "${output}" "${result}" position)
    if(NOT location)
      set(position -1)
    endif()
    if(status EQUAL 0 OR position EQUAL -1)
      message(SEND_ERROR "expected ${file} with ${line} to fail with '${result}', but got:\n${output}")
    endif()
  endif()
endfunction()

# Private and public headers of higher layers.
expect("src/common/a.h, which" "src/kernels/a.cpp" "#include \"src/common/a.h\"")
expect("tessera/features/nest.h, which" "src/kernels/a.cpp" "#include <tessera/features/nest.h>")
expect("optim/a.h, which" "src/common/a.cpp" "#include \"optim/a.h\"")
expect("src/tables/a.h, which" "optim/a.cpp" "#include \"src/tables/a.h\"")
expect("tessera/features/nest.h, which" "include/tessera/optim/a.h" "#include <tessera/features/nest.h>")
expect("src/features/a.h, which" "src/tables/a.cpp" "#include \"src/features/a.h\"")
expect("src/engine/a.h, which" "src/features/a.cpp" "#include \"src/engine/a.h\"")
expect("layers/a.h, which" "serialization/a.cpp" "  #  include \"layers/a.h\" // [batch")
expect("tessera/layers/a.h, which" "src/engine/strategies/a.cpp" "#include <tessera/layers/a.h>")
expect("tests/a.h, which" "layers/a.cpp" "#include \"tests/a.h\"")
expect("tessera/tessera.h, which" "layers/a.cpp" "#include <tessera/tessera.h>")
expect("layers/b.h, which" "src/engine/a.cpp" "#include \"../../layers/b.h\"" "layers/b.h")

# The formats of an export.
expect("packages/export/src/pt2/a.h, and trace/ may include only" "packages/export/src/trace/a.cpp"
       "#include \"packages/export/src/pt2/a.h\"")
expect("packages/export/src/pt2/a.h, and torchscript/ may include only" "packages/export/src/torchscript/a.cpp"
       "#include \"packages/export/src/pt2/a.h\"")
expect(passes "packages/export/src/pt2/a.cpp" "#include \"packages/export/src/trace/a.h\"")

# Headers of lower layers, of the same layer, and of other projects.
expect(passes "optim/a.cpp" "#include \"src/kernels/kernels.h\"")
expect(passes "src/engine/a.cpp" "#include <tessera/optim/schedule.h>")
expect(passes "src/engine/strategies/a.cpp" "#include \"src/engine/engine.h\"")
expect(passes "src/kernels/a.cpp" "#include \"b.h\"" "src/kernels/b.h")
expect(passes "serialization/a.cpp" "#include <tessera/serialization/a.h>")
expect(passes "layers/a.cpp" "#include \"serialization/a.h\"")
expect(passes "layers/a.cpp" "// #include <tessera/tessera.h>")
expect(passes "src/engine/a.cpp" "#include <torch/nn/module.h>")

# The core includes no package, and a package only the packages that it may use.
expect("packages/data/src/a.h, which" "serialization/a.cpp" "#include \"packages/data/src/a.h\"")
expect("tessera/distributed/a.h, which" "src/engine/strategies/a.cpp" "#include <tessera/distributed/a.h>")
expect("tessera/layers/dense/a.h, which" "layers/a.cpp" "#include <tessera/layers/dense/a.h>")
expect("layers/dense/a.h, which" "packages/training/src/a.cpp" "#include \"layers/dense/a.h\"")
expect("tessera/models/a.h, which" "layers/dense/a.cpp" "#include <tessera/models/a.h>")
expect("tessera/models/a.h, which" "include/tessera/layers/a.h" "#include <tessera/models/a.h>")
expect("tessera/data/a.h, which" "packages/training/src/a.cpp" "#include <tessera/data/a.h>")
expect("tessera/search/a.h, which" "packages/training/include/tessera/training/a.h" "#include <tessera/search/a.h>")
expect("packages/data/tests/a.h, which" "packages/data/src/a.cpp" "#include \"packages/data/tests/a.h\"")
expect(passes "packages/search/src/a.cpp" "#include <tessera/training/a.h>")
expect(passes "packages/models/src/a.cpp" "#include \"layers/dense/row_blocks.h\"")
expect(passes "layers/dense/a.cpp" "#include \"layers/initial_parameter.h\"")
expect(passes "packages/training/src/a.cpp" "#include \"src/common/check.h\"")
expect("layers/a.h, a private header that" "packages/training/src/a.cpp" "#include \"layers/a.h\"")
expect("packages/formats/src/a.h, a private header that" "packages/export/src/a.cpp" "#include \"packages/formats/src/a.h\"")
expect(passes "packages/data/tests/a_test.cpp" "#include <tessera/training/a.h>")
expect(passes "examples/a.cpp" "#include <tessera/models/a.h>")

# A folder that is neither a layer nor a package.
expect("in a folder that is no layer" "src/strategies/a.cpp" "#include <vector>")
expect("in a folder that is no layer" "packages/other/src/a.cpp" "#include <vector>")

# Public headers that declare functions have a source file of their name.
expect("functions, but there is no source file a.cpp" "include/tessera/optim/a.h" "int f();")
expect("functions, but there is no source file a.cpp" "include/tessera/engine/a.h" "std::string f(int a = 1) const;")
expect(passes "include/tessera/optim/a.h" "int f();" "optim/a.cpp")
expect(passes "include/tessera/engine/a.h" "int f();" "src/engine/a.cpp")
expect(passes "packages/data/include/tessera/data/a.h" "int f();" "packages/data/src/arrow/a.cpp")
expect("functions, but there is no source file a.cpp" "packages/data/include/tessera/data/a.h" "int f();" "src/data/a.cpp")
expect(passes "include/tessera/engine/a.h" "inline int f() { return g(1); }")
expect(passes "include/tessera/engine/a.h" "static_assert(std::is_aggregate_v<int>);")

# LibTorch in kernels, its umbrella headers anywhere, fmt in public headers.
expect("ATen/core/Tensor.h of LibTorch" "src/kernels/a.h" "#include <ATen/core/Tensor.h>")
expect("c10/util/Exception.h of LibTorch" "src/kernels/a.h" "#include <c10/util/Exception.h>")
expect("torch/nn/module.h of LibTorch" "src/kernels/a.h" "#include \"torch/nn/module.h\"")
expect("ATen/core/Tensor.h of LibTorch" "layers/dense/kernels/a.h" "#include <ATen/core/Tensor.h>")
expect("ATen/core/Tensor.h of LibTorch" "packages/search/src/scan/a.cpp" "#include <ATen/core/Tensor.h>")
expect("torch/torch.h, which takes" "layers/a.cpp" "#include <torch/torch.h>")
expect("torch/all.h, which takes" "include/tessera/layers/a.h" "#include <torch/all.h>")
expect("fmt/format.h in a public" "include/tessera/layers/a.h" "#include <fmt/format.h>")
expect(passes "src/engine/a.cpp" "#include <fmt/format.h>")

# Only json_text.cpp may parse JSON.
foreach(line IN ITEMS "const Json json = Json::parse(text);" "nlohmann::json::parse(file);"
                      "  nlohmann::ordered_json::sax_parse (begin, end, &reader);" "/// from_json(Json::parse(text))"
                      "if (json::accept(text)) {" "stream >> json;")
  expect("parses JSON" "layers/a.cpp" "${line}")
endforeach()
expect("parses JSON" "examples/a.cpp" "auto run = Json::parse(file);")
expect("parses JSON" "include/tessera/layers/a.h" "Json::parse(text)")
expect(passes "src/common/json_text.cpp" "Json::sax_parse(begin, end, this);")
expect(passes "layers/a.cpp" "const Json json = parse_json(text);")
expect(passes "layers/a.cpp" "  parser->parse(text);")

# Files are not written by torch::save().
expect("calls torch::save()" "layers/a.cpp" "  torch::save(model, path);")
expect(passes "layers/a.h" "/// torch::save(model, path) saves it, too.")
expect(passes "include/tessera/serialization/save_to_file.h" "  torch::save(value, writer);")
expect(passes "examples/a.cpp" "  torch::save(model, memory);")

# Readers copy the programs examples/my_*.cpp.
expect("in a program that readers copy" "examples/my_a.cpp" "#include \"examples/common/a.h\"")
expect("in a program that readers copy" "examples/my_a.cpp" "#include <CLI/CLI.hpp>")
expect(passes "examples/my_a.cpp" "#include <tessera/tessera.h>")
expect(passes "examples/my_a.cpp" "#include <iostream>")
