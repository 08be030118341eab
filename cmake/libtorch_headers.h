// SPDX-License-Identifier: Apache-2.0
// The headers of other projects that most sources of the libraries read. They are precompiled once.
#include <ATen/TensorOperators.h>
#include <nlohmann/json.hpp>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
