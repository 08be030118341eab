// SPDX-License-Identifier: Apache-2.0
#include "layers/layer_classes.h"

#include <tessera/common/shorten.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <initializer_list>

#include "src/common/check.h"

namespace tessera {

namespace {

constexpr const char* kDtype = "dtype";

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
// once for each option. `start` has the default values of its options, `required` the
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

}  // namespace

at::ScalarType weights_dtype_from_json(
    const Json& json,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    if (name == c10::toString(dtype)) {
      return dtype;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      fmt::format(
          "[{}] dtype must be Double, Half or BFloat16, but got '{}'. Leave it out for Float.",
          where,
          shorten(name)));
}

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

}  // namespace tessera
