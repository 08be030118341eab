// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/serialize/archive.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

// A torch::nn::Sequential passes results on by their exact type. With this specialisation,
// a layer that takes a nest may follow a layer that returns a tensor.
template <>
inline tessera::Nest<at::Tensor>* torch::nn::AnyValue::try_get() {
  using Nest = tessera::Nest<at::Tensor>;
  if (type_info() == typeid(at::Tensor)) {
    content_ = std::make_unique<Holder<Nest>>(
        static_cast<Holder<at::Tensor>&>(*content_).value);
  }
  return type_info() == typeid(Nest)
      ? &static_cast<Holder<Nest>&>(*content_).value
      : nullptr;
}

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp Layer
/// The interface of every layer of Tessera, in addition to torch::nn::Module's.
///
///   Cross cross(CrossOptions{.projection_dim = 16});
///   cross->build(PartialShape{std::nullopt, 64});  // or by the first forward()
///   const Json json = to_json(cross);
///   const Cross same = from_json<Cross>(json);  // without the weights
///
/// Source:  keras.layers.Layer.
class Layer {
 public:
  virtual ~Layer() = default;

  /// The name of the class in JSON, such as "Cross".
  virtual std::string class_name() const = 0;

  /// The options as JSON, with every field by its name.
  virtual Json get_config() const = 0;

  /// The shapes of the outputs for inputs of these shapes. An unknown size stays unknown.
  /// Errors:  c10::ValueError for inputs that the layer can't take.
  virtual Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const = 0;

  /// Gives the parameters sizes and initial values, for inputs of these shapes. Before
  /// build(), the parameters of Tessera's layers have the size 0. An optimizer or
  /// requires_grad_() can take them before or after build().
  /// Errors:  c10::ValueError for inputs that the layer can't take, or that differ from
  ///          those it was built for; nothing is changed.
  virtual void build(const Nest<PartialShape>& input_shapes) = 0;

  /// The shapes that the layer was built for. Unset if it is not built.
  virtual std::optional<Nest<PartialShape>> input_shapes() const = 0;

  /// A text table of the layer's parts and parameters.
  virtual std::string summary() const = 0;
};

/// The shapes of tensors as build() takes them. Their first dimension, the batch, is
/// unknown.
/// Errors:  c10::ValueError naming the path of an undefined tensor or a scalar;
///          `where` begins the message.
Nest<PartialShape> shapes_of(
    const Nest<at::Tensor>& inputs,
    const std::string& where);

/// A text table with a line for each module that has parameters or no submodules: its
/// path, class and parameters. After these come the number of dense parameters and the
/// summaries of embedding tables.
std::string summary(const torch::nn::Module& model);

namespace detail {

/// Checks that `inputs` agrees with `built` wherever both sizes are known.
/// Errors:  c10::ValueError if they differ.
void check_same_shapes(
    const std::string& class_name,
    const Nest<PartialShape>& built,
    const Nest<PartialShape>& inputs);

/// Checks that LibTorch can use the device; `where` begins the message.
/// Errors:  c10::ValueError if it can't.
void check_device(const torch::Device& device, const std::string& where);

/// Prints the class and the config.
void print_layer(const Layer& layer, std::ostream& stream);

/// Gives `to`, which stays the same object, the size and the values of `from`, but not
/// its dtype and device.
void adopt_values(at::Tensor to, const at::Tensor& from);
/// The same for all parameters and buffers of a module of the same class.
void adopt_parameters(torch::nn::Module& to, const torch::nn::Module& from);
/// A parameter without a size, for adopt_values().
at::Tensor unsized_parameter();
/// Returns whether the parameter has no size yet, because its layer is not built.
bool is_unsized(const at::Tensor& parameter);

/// Saves the tensors of a layer and the shapes that it was built for, with checksums of
/// both. Layers inside the layer write their own checksums.
void save_layer(
    const torch::nn::Module& module,
    const std::optional<Nest<PartialShape>>& input_shapes,
    torch::serialize::OutputArchive& archive);
/// Saves that a layer is not built and has no entries.
void save_unbuilt_layer(torch::serialize::OutputArchive& archive);
/// Compares the entries of a layer's archive with their checksums. Builds the layer for the
/// shapes in the archive, if `built` is unset.
/// Errors:  c10::ValueError listing damaged entries, or if the shapes and `built` differ in
///          more than the batch size.
void build_as_saved(
    Layer& layer,
    const std::optional<Nest<PartialShape>>& built,
    torch::serialize::InputArchive& archive);

}  // namespace detail

// snippet: tests/docs/own_layer_test.cpp own_layer
/// The base class of layers whose config is their options. To write your own layer,
/// include layer_json.h and input_checks.h:
///
///   struct ScaleOptions {
///     double initial_value = 1.0;
///     bool operator==(const ScaleOptions&) const = default;
///     TESSERA_FIELDS(initial_value)
///   };
///
///   class ScaleImpl : public tessera::LayerImpl<ScaleImpl, ScaleOptions> {
///    public:
///     static constexpr const char* kClassName = "Scale";
///     using LayerImpl::LayerImpl;
///
///     torch::Tensor forward(const torch::Tensor& x) {
///       build_on_first_call(x);
///       tessera::check_fits(x, scale_, kClassName);
///       return x * scale_;
///     }
///     tessera::Nest<tessera::PartialShape> compute_output_shape(
///         const tessera::Nest<tessera::PartialShape>& inputs) const override {
///       return tessera::check_rows(inputs, kClassName);
///     }
///
///    private:
///     void make_parameters(
///         const tessera::Nest<tessera::PartialShape>& inputs) override {
///       const int64_t dim = tessera::known_dim(inputs.leaf(), kClassName);
///       scale_ = register_parameter(
///           "scale", torch::full({dim}, options().initial_value));
///     }
///     torch::Tensor scale_;
///   };
///   TORCH_MODULE(Scale);
///   const bool is_registered = tessera::register_layer<Scale>();  // for JSON
///
/// This layer has no parameter before the first forward() or build(), so make optimizers
/// after that call. Tessera's own layers also override declare_parameters(), so they have
/// parameters from the start, but without a size.
///
/// A model that creates all its parts in the constructor overrides reset(), as every
/// torch::nn::Cloneable does, and calls it in the constructor. It need not override
/// compute_output_shape() and make_parameters().
template <class Derived, class OptionsType>
class LayerImpl : public torch::nn::Cloneable<Derived>, public Layer {
 public:
  using Options = OptionsType;

  explicit LayerImpl(Options options = {})
      : torch::nn::Cloneable<Derived>(
            std::string("tessera::").append(Derived::kClassName)),
        options_(std::move(options)) {}

  const Options& options() const& {
    return options_;
  }
  const Options& options() const&& = delete;

  std::string class_name() const override {
    return Derived::kClassName;
  }

  /// Defined in layer_json.h.
  Json get_config() const override;

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& /*input_shapes*/) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "[",
        class_name(),
        "] compute_output_shape() is not implemented for this layer. Override "
        "it.");
  }

  void build(const Nest<PartialShape>& input_shapes) override {
    if (input_shapes_) {
      detail::check_same_shapes(class_name(), *input_shapes_, input_shapes);
      return;
    }
    compute_output_shape(input_shapes);  // refuses what can't be built
    make_parameters(input_shapes);
    input_shapes_ = input_shapes;
  }

  std::optional<Nest<PartialShape>> input_shapes() const override {
    return input_shapes_;
  }

  std::string summary() const override {
    return tessera::summary(*this);
  }

  /// Takes over options, parameters and shapes of `built`, a layer with the same
  /// parameters. The parameters of this layer stay the same tensors.
  void adopt(const Derived& built) {
    detail::adopt_parameters(*this, built);
    options_ = built.options();
    input_shapes_ = built.input_shapes();
  }

  /// torch::nn::Cloneable calls this to create the parameters of a copy.
  void reset() override {
    if (has_declared_) {
      declare_parameters();
    }
    if (input_shapes_) {
      make_parameters(*input_shapes_);
    }
  }

  /// Also saves the shapes that the layer was built for. So a layer that is not built yet
  /// can load the archive.
  void save(torch::serialize::OutputArchive& archive) const override {
    if (is_unsized()) {
      detail::save_unbuilt_layer(archive);
    } else {
      detail::save_layer(*this, input_shapes(), archive);
    }
  }
  /// Errors:  c10::ValueError listing the damaged entries of the layer and of the layers
  ///          in it; nothing is changed.
  void load(torch::serialize::InputArchive& archive) override {
    detail::build_as_saved(*this, input_shapes_, archive);
    if (!is_unsized()) {  // else the archive is of a layer that is not built, too
      torch::nn::Module::load(archive);
    }
  }

  using torch::nn::Module::to;
  /// Moves the parameters and buffers of the layer and of its submodules. On
  /// torch::kMeta they have shapes, but lose their values.
  /// Errors:  c10::ValueError for a device that LibTorch can't use here; nothing is
  ///          changed.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false)
      override {
    detail::check_device(device, c10::str("[", class_name(), "::to]"));
    torch::nn::Module::to(device, dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    detail::check_device(device, c10::str("[", class_name(), "::to]"));
    torch::nn::Module::to(device, non_blocking);
  }

  /// A deep copy. Its parameters and buffers are on `device`, if that is given.
  /// Errors:  c10::ValueError for a device that LibTorch can't use here.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    if (device) {
      detail::check_device(*device, c10::str("[", class_name(), "::clone]"));
    }
    return torch::nn::Cloneable<Derived>::clone(device);
  }

  void pretty_print(std::ostream& stream) const override {
    detail::print_layer(*this, stream);
  }

 protected:
  /// Registers the parameters with their initial values. If declare_parameters() has
  /// registered them, gives them their sizes and initial values. It is called only if
  /// compute_output_shape() has accepted `input_shapes`.
  virtual void make_parameters(const Nest<PartialShape>& /*input_shapes*/) {}

  /// Registers the parameters without a size, so that an optimizer can be made before the
  /// layer is built.
  virtual void declare_parameters() {}
  /// A layer that overrides declare_parameters() calls this at the end of its
  /// constructor.
  void declare() {
    has_declared_ = true;
    declare_parameters();
  }

  /// Builds the layer for the inputs of its first forward(). If some inputs have a
  /// floating-point dtype, moves the layer to the device of the first such input, and to
  /// the dtype to which LibTorch promotes these inputs.
  void build_on_first_call(const Nest<at::Tensor>& inputs) {
    if (input_shapes_) {
      return;
    }
    const c10::InferenceMode normal(
        false);  // the parameters may be trained later
    const Nest<PartialShape> shapes =
        shapes_of(inputs, c10::str("[", class_name(), "] "));
    std::optional<c10::Device> device;
    at::ScalarType dtype = at::kFloat;
    inputs.for_each([&](const std::string& /*path*/, const at::Tensor& input) {
      if (input.is_floating_point()) {
        dtype = device ? c10::promoteTypes(dtype, input.scalar_type())
                       : input.scalar_type();
        device = device.value_or(input.device());
      }
    });
    build(shapes);
    if (device) {
      this->to(*device, dtype);
    }
  }

 private:
  bool is_unsized() const {
    return has_declared_ && !input_shapes_;
  }

  Options options_;
  std::optional<Nest<PartialShape>> input_shapes_;
  bool has_declared_ = false;
};

}  // namespace tessera
