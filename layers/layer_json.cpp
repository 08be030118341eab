// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_json.h>

#include "src/common/check.h"
#include "src/common/names.h"

#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/layers/sequential.h>
#include <tessera/layers/tpu_embedding.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <mutex>

namespace tessera {

namespace {

constexpr const char* kSequential = "Sequential";
constexpr const char* kDtype = "dtype";

// Reads the dtype of a layer's weights. The JSON has LibTorch's name of the dtype.
// Errors:  c10::ValueError naming `where` unless it is Double, Half or BFloat16.
at::ScalarType weights_dtype_from_json(
    const Json& json,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    if (name == c10::toString(dtype)) {
      return dtype;
    }
  }
  TESSERA_CHECK_VALUE(
      false,
      "[{}] dtype must be Double, Half or BFloat16, but got '{}'. Leave it out for Float.",
      where,
      shorten(name));
}

// Returns the dtype of the layer's weights, or of its buffers if it has no weights.
at::ScalarType weights_dtype(const torch::nn::Module& layer) {
  for (const auto& tensors : {layer.parameters(), layer.buffers()}) {
    if (!tensors.empty()) {
      return tensors.front().scalar_type();
    }
  }
  return at::kFloat;
}

// Describes a class of LibTorch. `visit_fields(options, visit)` calls visit(name, value)
// once for each option. `start` has the defaults of the options, and `required` the
// names of options without a default.
template <
    class Impl,
    class Options =
        std::remove_cvref_t<decltype(std::declval<Impl&>().options)>,
    class VisitFields>
detail::LayerClass stock(
    const char* name,
    VisitFields visit_fields,
    Options start = {},
    std::initializer_list<const char*> required = {}) {
  const std::vector<std::string> needed(required.begin(), required.end());
  return {
      .name = name,
      .type = typeid(Impl),
      .get_config =
          [visit_fields](const torch::nn::Module& module) {
            Json config = Json::object();
            visit_fields(
                dynamic_cast<const Impl&>(module).options,
                [&](const char* key, const auto& field) {
                  using Field = std::remove_cvref_t<decltype(field)>;
                  config[key] = JsonValue<Field>::write(field);
                });
            const at::ScalarType dtype = weights_dtype(module);
            if (dtype != at::kFloat) {
              config[kDtype] = c10::toString(dtype);
            }
            return config;
          },
      .make =
          [start, needed, visit_fields](
              const Json& config, const std::string& where, const FromJson&) {
            Options options = start;
            std::vector<std::string> known;
            visit_fields(options, [&](const char* key, const auto&) {
              known.emplace_back(key);
            });
            known.emplace_back(kDtype);
            check_known_keys(config, known, where);
            for (const std::string& key : needed) {
              field_of(config, key.c_str(), where);
            }
            visit_fields(options, [&](const char* key, auto& field) {
              using Field = std::remove_cvref_t<decltype(field)>;
              if (config.contains(key)) {
                field =
                    JsonValue<Field>::read(config.at(key), where + "." + key);
              }
            });
            std::shared_ptr<Impl> module;
            try {
              module = std::make_shared<Impl>(options);
            } catch (const c10::Error& error) {
              TESSERA_CHECK_VALUE(
                  false, "[{}] {}", where, error.what_without_backtrace());
            }
            if (config.contains(kDtype)) {
              module->to(weights_dtype_from_json(
                  config.at(kDtype), where + "." + kDtype));
            }
            return detail::LayerInstance{
                .module = module, .any = torch::nn::AnyModule(module)};
          }};
}

// Describes a class of LibTorch that has no options.
template <class Impl>
detail::LayerClass plain(const char* name) {
  return {
      .name = name,
      .type = typeid(Impl),
      .get_config = [](const torch::nn::Module&) { return Json::object(); },
      .make =
          [](const Json& config, const std::string& where, const FromJson&) {
            check_known_keys(config, {}, where);
            auto module = std::make_shared<Impl>();
            return detail::LayerInstance{
                .module = module, .any = torch::nn::AnyModule(module)};
          }};
}

// The layers of LibTorch that JSON supports.
std::vector<detail::LayerClass> stock_layer_classes() {
  using namespace torch::nn;
  return {
      stock<ELUImpl>(
          "ELU",
          [](auto& options, auto&& visit) {
            visit("alpha", options.alpha());
            visit("inplace", options.inplace());
          }),
      stock<GELUImpl>(
          "GELU",
          [](auto& options, auto&& visit) {
            visit("approximate", options.approximate());
          }),
      stock<LeakyReLUImpl>(
          "LeakyReLU",
          [](auto& options, auto&& visit) {
            visit("negative_slope", options.negative_slope());
            visit("inplace", options.inplace());
          }),
      stock<ReLUImpl>(
          "ReLU",
          [](auto& options, auto&& visit) {
            visit("inplace", options.inplace());
          }),
      plain<SiLUImpl>("SiLU"),
      plain<SigmoidImpl>("Sigmoid"),
      stock<SoftmaxImpl>(
          "Softmax",
          [](auto& options, auto&& visit) { visit("dim", options.dim()); },
          SoftmaxOptions(1),
          {"dim"}),
      plain<TanhImpl>("Tanh"),
      stock<BatchNorm1dImpl>(
          "BatchNorm1d",
          [](auto& options, auto&& visit) {
            visit("num_features", options.num_features());
            visit("eps", options.eps());
            visit("momentum", options.momentum());
            visit("affine", options.affine());
            visit("track_running_stats", options.track_running_stats());
          },
          BatchNorm1dOptions(1),
          {"num_features"}),
      stock<DropoutImpl>(
          "Dropout",
          [](auto& options, auto&& visit) {
            visit("p", options.p());
            visit("inplace", options.inplace());
          }),
      stock<FlattenImpl>(
          "Flatten",
          [](auto& options, auto&& visit) {
            visit("start_dim", options.start_dim());
            visit("end_dim", options.end_dim());
          }),
      plain<IdentityImpl>("Identity"),
      stock<LayerNormImpl>(
          "LayerNorm",
          [](auto& options, auto&& visit) {
            visit("normalized_shape", options.normalized_shape());
            visit("eps", options.eps());
            visit("elementwise_affine", options.elementwise_affine());
          },
          LayerNormOptions(std::vector<int64_t>{1}),
          {"normalized_shape"}),
      stock<LinearImpl>(
          "Linear",
          [](auto& options, auto&& visit) {
            visit("in_features", options.in_features());
            visit("out_features", options.out_features());
            visit("bias", options.bias());
          },
          LinearOptions(1, 1),
          {"in_features", "out_features"})};
}

// The known classes by name. The first use adds LibTorch's classes and embedding layers, and
// static initializers of register_dense_layers.cpp and of users' sources add others.
class Registry {
 public:
  static Registry& get() {
    static Registry registry;
    return registry;
  }

  void add(detail::LayerClass layer_class) {
    const std::lock_guard lock(mutex_);
    const auto found = classes_.find(layer_class.name);
    TESSERA_CHECK_VALUE(
        layer_class.name != kSequential &&
            (found == classes_.end() || found->second.type == layer_class.type),
        "[register_layer] each class must have its own name, but another class has the name '{}'. Choose another kClassName.",
        shorten(layer_class.name));
    classes_.insert_or_assign(layer_class.name, layer_class);
  }

  detail::LayerClass find(const std::string& name, const std::string& where) {
    const std::lock_guard lock(mutex_);
    const auto found = classes_.find(name);
    TESSERA_CHECK_VALUE(
        found != classes_.end(),
        "[{}] unknown class_name '{}'. Known: {}. Call register_dense_layers() for MLP and its like, register_models() for layers of the package models, and register_layer() for your own.",
        where,
        shorten(name),
        known());
    return found->second;
  }

  detail::LayerClass find(
      const torch::nn::Module& layer,
      const std::string& where) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(classes_, [&](const auto& entry) {
      return entry.second.type == typeid(layer);
    });
    TESSERA_CHECK_VALUE(
        found != classes_.end(),
        "[{}] a layer of class {} can't be written as JSON. Known: {}. Call register_dense_layers() for MLP and its like, register_models() for layers of the package models, and register_layer() for your own.",
        where,
        layer.name(),
        known());
    return found->second;
  }

 private:
  Registry() {
    std::vector<detail::LayerClass> known = stock_layer_classes();
    known.push_back(detail::layer_class<PartialTPUEmbedding>());
    known.push_back(detail::layer_class<TPUEmbedding>());
    for (detail::LayerClass& layer_class : known) {
      classes_.emplace(layer_class.name, layer_class);
    }
  }

  std::string known() const {
    std::vector<std::string> names{kSequential};
    for (const auto& [name, layer_class] : classes_) {
      names.push_back(name);
    }
    return join_names(names);
  }

  std::mutex mutex_;
  std::map<std::string, detail::LayerClass> classes_;
};

Json write(const torch::nn::Module& layer, const std::string& where);

Json write_sequential(
    const torch::nn::SequentialImpl& model,
    const std::string& where) {
  Json layers = Json::array();
  std::map<const torch::nn::Module*, std::string> seen;
  for (const auto& child : model.named_children()) {
    Json entry = {{"name", child.key()}};
    const auto [found, is_new] =
        seen.try_emplace(child.value().get(), child.key());
    if (is_new) {
      entry.update(write(*child.value(), where + "." + shorten(child.key())));
    } else {
      entry["same_as"] = found->second;
    }
    layers.push_back(std::move(entry));
  }
  return {
      {"class_name", kSequential}, {"config", {{"layers", std::move(layers)}}}};
}

Json write(const torch::nn::Module& layer, const std::string& where) {
  if (typeid(layer) == typeid(torch::nn::SequentialImpl) ||
      typeid(layer) == typeid(SequentialImpl)) {
    return write_sequential(
        dynamic_cast<const torch::nn::SequentialImpl&>(layer), where);
  }
  const detail::LayerClass layer_class = Registry::get().find(layer, where);
  Json json = {
      {"class_name", layer_class.name},
      {"config", layer_class.get_config(layer)}};
  const auto* own = dynamic_cast<const Layer*>(&layer);
  if (own != nullptr && own->input_shapes()) {
    json["build_config"] = {
        {"input_shape",
         JsonValue<Nest<PartialShape>>::write(*own->input_shapes())}};
    const std::vector<at::Tensor> parameters = layer.parameters();
    if (!parameters.empty() && parameters.front().scalar_type() != at::kFloat) {
      json["build_config"][kDtype] =
          c10::toString(parameters.front().scalar_type());
    }
  }
  return json;
}

detail::LayerInstance read(
    const Json& json,
    const std::string& where,
    const FromJson& bindings);

std::shared_ptr<SequentialImpl> read_sequential(
    const Json& config,
    const std::string& where,
    const FromJson& bindings) {
  check_known_keys(config, {"layers"}, where);
  const Json& layers = field_of(config, "layers", where);
  check_kind(layers.is_array(), layers, "a list", where + ".layers");
  auto model = std::make_shared<SequentialImpl>();
  std::map<std::string, torch::nn::AnyModule> layers_by_name;
  for (const Json& entry : layers) {
    const std::string entry_where =
        c10::str(where, ".layers[", layers_by_name.size(), "]");
    check_kind(entry.is_object(), entry, "an object", entry_where);
    const std::string name = JsonValue<std::string>::read(
        field_of(entry, "name", entry_where), entry_where + ".name");
    TESSERA_CHECK_VALUE(
        !name.empty() && name.find('.') == std::string::npos &&
            !layers_by_name.contains(name),
        "[{}] name must be unique, not empty and without '.', but got '{}'. Rename this entry.",
        entry_where,
        shorten(name));
    torch::nn::AnyModule layer;
    if (entry.contains("same_as")) {
      check_known_keys(entry, {"name", "same_as"}, entry_where);
      const std::string other = JsonValue<std::string>::read(
          entry.at("same_as"), entry_where + ".same_as");
      const auto found = layers_by_name.find(other);
      TESSERA_CHECK_VALUE(
          found != layers_by_name.end(),
          "[{}] same_as must name a layer before this one, but got '{}'. Move that layer before this one.",
          entry_where,
          shorten(other));
      layer = found->second;
    } else {
      Json unnamed = entry;
      unnamed.erase("name");
      layer = read(unnamed, entry_where, bindings).any;
    }
    TESSERA_CHECK_VALUE(
        !layer.is_empty(),
        "[{}] a Sequential can't hold a {}, because no single function is its forward(). Hold it in your own module.",
        entry_where,
        shorten(entry.at("class_name").get<std::string>()));
    layers_by_name.emplace(name, layer);
    model->push_back(name, std::move(layer));
  }
  return model;
}

detail::LayerInstance read(
    const Json& json,
    const std::string& where,
    const FromJson& bindings) {
  check_known_keys(json, {"class_name", "config", "build_config"}, where);
  const std::string name = JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
  const Json config = json.value("config", Json::object());
  const std::string inner = where + "." + shorten(name);
  if (name == kSequential) {
    check_known_keys(json, {"class_name", "config"}, where);
    return {.module = read_sequential(config, inner, bindings)};
  }
  detail::LayerInstance instance =
      Registry::get().find(name, where).make(config, inner, bindings);
  if (json.contains("build_config")) {
    const Json& build = json.at("build_config");
    check_known_keys(build, {"input_shape", kDtype}, inner + ".build_config");
    auto* own = dynamic_cast<Layer*>(instance.module.get());
    TESSERA_CHECK_VALUE(
        own != nullptr,
        "[{}] a {} takes no build_config. Leave it out.",
        inner,
        name);
    own->build(JsonValue<Nest<PartialShape>>::read(
        field_of(build, "input_shape", inner + ".build_config"),
        inner + ".build_config.input_shape"));
    if (build.contains(kDtype)) {
      instance.module->to(weights_dtype_from_json(
          build.at(kDtype), inner + ".build_config.dtype"));
    }
  }
  return instance;
}

}  // namespace

namespace detail {

void add_layer_class(LayerClass layer_class) {
  Registry::get().add(std::move(layer_class));
}

}  // namespace detail

Json to_json(const torch::nn::Module& layer) {
  return write(layer, "to_json");
}

std::shared_ptr<torch::nn::Module> layer_from_json(
    const Json& json,
    const FromJson& bindings) {
  check_depth(json, "layer");
  return read(json, "layer", bindings).module;
}

}  // namespace tessera
