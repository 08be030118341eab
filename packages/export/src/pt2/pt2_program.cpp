// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/pt2_program.h>

#include "packages/export/src/pt2/archive.h"
#include "packages/export/src/pt2/graph_runner.h"
#include "packages/export/src/pt2/input_check.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {

namespace {

constexpr const char* kProgramWhere = "[Pt2Program]";

std::string shape_text(const std::vector<std::optional<int64_t>>& shape) {
  std::vector<std::string> sizes;
  for (const std::optional<int64_t>& size : shape) {
    sizes.push_back(size ? std::to_string(*size) : "?");
  }
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

// Returns the weight of this name, which must have the shape and the dtype of `like`.
at::Tensor checked_weight(
    const std::map<std::string, at::Tensor>& weights,
    const std::string& name,
    const at::Tensor& like) {
  const auto found = weights.find(name);
  TESSERA_CHECK_VALUE(
      found != weights.end() && found->second.defined(),
      "{} with_weights: expected the weight '{}', but it is missing. Pass all weights of the program.",
      kProgramWhere,
      shorten(name));
  const at::Tensor& tensor = found->second;
  TESSERA_CHECK_VALUE(
      tensor.sizes() == like.sizes() && tensor.is_cpu() &&
          tensor.layout() == at::kStrided,
      "{} with_weights: the weight '{}' must be a dense tensor {} on the cpu, but is {} on {}. Export the program again if the model has changed.",
      kProgramWhere,
      shorten(name),
      like.sizes(),
      tensor.sizes(),
      tensor.device());
  TESSERA_CHECK_TYPE(
      tensor.scalar_type() == like.scalar_type(),
      "{} with_weights: the weight '{}' must be {}, but is {}. Convert it with .to().",
      kProgramWhere,
      shorten(name),
      like.scalar_type(),
      tensor.scalar_type());
  return tensor;
}

void add_values(
    std::string& text,
    const char* title,
    const std::vector<Pt2Value>& values) {
  text += fmt::format("{}\n", title);
  for (size_t i = 0; i < values.size(); ++i) {
    const Pt2Value& value = values[i];
    text += fmt::format(
        "  {:>3}  {:<32} {:<8} {:<12} {}\n",
        i,
        value.name,
        c10::toString(value.dtype),
        shape_text(value.shape),
        value.part.empty() ? value.path
                           : fmt::format("{}: {}", value.path, value.part));
  }
}

}  // namespace

std::string to_string(const Pt2Signature& signature) {
  std::string text;
  add_values(text, "inputs", signature.inputs);
  add_values(text, "outputs", signature.outputs);
  return text;
}

class Pt2Program::Impl {
 public:
  Impl(pt2::Archive archive, const std::string& place)
      : archive_(std::move(archive)),
        runner_(archive_.graph, tensors_of(archive_), kProgramWhere),
        check_(
            archive_.signature.inputs,
            sizes_of(archive_.graph),
            kProgramWhere) {
    TESSERA_CHECK_VALUE(
        check_.num_symbols() <= kMaxSymbols,
        "{} expected at most {} symbols, but got {}. The file is damaged.",
        place,
        kMaxSymbols,
        check_.num_symbols());
  }

  std::unique_ptr<Impl> with_weights(
      const std::map<std::string, at::Tensor>& weights) const {
    pt2::Archive archive = archive_;
    for (pt2::Weight& weight : archive.weights) {
      if (!weights.contains(weight.name) && !weight.is_parameter &&
          weight.name.starts_with("constant_")) {
        continue;  // a constant of the graph, which no module has
      }
      weight.tensor = checked_weight(weights, weight.name, weight.tensor);
    }
    return std::make_unique<Impl>(std::move(archive), kProgramWhere);
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const {
    check(inputs);
    return runner_.run(inputs);
  }

  void check(const std::vector<at::Tensor>& inputs) const {
    check_(inputs);
  }

  const pt2::Archive& archive() const {
    return archive_;
  }

 private:
  static constexpr size_t kMaxSymbols = 1'000'000;

  static std::vector<at::Tensor> tensors_of(const pt2::Archive& archive) {
    std::vector<at::Tensor> tensors;
    for (const pt2::Weight& weight : archive.weights) {
      tensors.push_back(weight.tensor);
    }
    return tensors;
  }

  static std::vector<std::vector<pt2::Polynomial>> sizes_of(
      const pt2::Graph& graph) {
    std::vector<std::vector<pt2::Polynomial>> sizes;
    for (const std::string& input : graph.inputs) {
      sizes.push_back(graph.tensors.at(input).sizes);
    }
    return sizes;
  }

  pt2::Archive archive_;
  pt2::GraphRunner runner_;
  exporting::InputCheck check_;
};

Pt2Program::Pt2Program(const std::string& path) {
  const std::string place = fmt::format("{} {}:", kProgramWhere, path);
  impl_ = std::make_unique<Impl>(
      pt2::read_archive(
          std::make_shared<MappedFile>(path, kProgramWhere), place),
      place);
}

Pt2Program::Pt2Program(
    std::string_view bytes,
    std::shared_ptr<const void> owner)
    : impl_(std::make_unique<Impl>(
          pt2::read_archive(
              std::make_shared<MappedFile>(bytes, std::move(owner)),
              kProgramWhere),
          kProgramWhere)) {}

Pt2Program::Pt2Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Pt2Program::~Pt2Program() = default;
Pt2Program::Pt2Program(Pt2Program&&) noexcept = default;
Pt2Program& Pt2Program::operator=(Pt2Program&&) noexcept = default;

const Pt2Signature& Pt2Program::signature() const& {
  return impl_->archive().signature;
}

std::vector<at::Tensor> Pt2Program::run(
    const std::vector<at::Tensor>& inputs) const {
  return impl_->run(inputs);
}

void Pt2Program::check(const std::vector<at::Tensor>& inputs) const {
  impl_->check(inputs);
}

Pt2Program Pt2Program::with_weights(
    const std::map<std::string, at::Tensor>& weights) const {
  return Pt2Program(impl_->with_weights(weights));
}

std::vector<std::pair<std::string, at::Tensor>> Pt2Program::state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const pt2::Weight& weight : impl_->archive().weights) {
    weights.emplace_back(weight.name, weight.tensor);
  }
  return weights;
}

}  // namespace tessera
