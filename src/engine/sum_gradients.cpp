// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/sum_gradients.h>

#include <tessera/common/profile_scope.h>
#include <tessera/engine/sharding_options.h>

#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <string>

namespace tessera::distributed {

namespace {

void check(const at::Tensor& tensor, const char* where, const char* what) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
          tensor.scalar_type() == at::kFloat,
      "{} {} must be dense float32 tensors on the CPU, but one is {}. Convert it to dense float32 on the CPU, or leave it out and synchronize it yourself.",
      where,
      what,
      tensor.defined() ? c10::str(
                             "a ",
                             tensor.layout(),
                             " ",
                             c10::toString(tensor.scalar_type()),
                             " on ",
                             tensor.device())
                       : "undefined");
}

// Returns one vector. For each parameter, it has the numbers of value_of(parameter) and
// then a 1. If value_of(parameter) is undefined, it has zeros and then a 0.
template <class ValueOf>
at::Tensor pack(const std::vector<at::Tensor>& parameters, ValueOf value_of) {
  std::vector<at::Tensor> parts{at::empty({0}, at::kFloat)};
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor value = value_of(parameter);
    parts.push_back(
        value.defined() ? value.flatten()
                        : at::zeros({parameter.numel()}, at::kFloat));
    parts.push_back(at::full({1}, value.defined() ? 1.0 : 0.0, at::kFloat));
  }
  return at::cat(parts);
}

template <class Use>
void unpack(
    const std::vector<at::Tensor>& parameters,
    const at::Tensor& values,
    Use use) {
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const int64_t end = begin + parameter.numel();
    use(parameter,
        values.slice(0, begin, end).view(parameter.sizes()),
        values[end].item<float>());
    begin = end + 1;
  }
}

// Sums the values that `pack_values` returns on each rank.
template <class PackValues>
at::Tensor sum_over_ranks(
    RankGroup& ranks,
    Rendezvous rendezvous,
    const std::vector<at::Tensor>& parameters,
    PackValues pack_values) {
  at::Tensor values;
  std::string shapes;
  const std::exception_ptr error = error_of([&] {
    values = pack_values();
    for (const at::Tensor& parameter : parameters) {
      shapes.append(c10::str(parameter.sizes()));
    }
  });
  return ranks.sum(
      rendezvous,
      error,
      {.value = static_cast<int64_t>(random_key(0, shapes)),
       .problem =
           "has parameters of other shapes. Pass the same parameters in the same order."},
      values);
}

}  // namespace

void sum_gradients(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  if (sharded == nullptr) {
    return;
  }
  const ProfileScope scope("tessera::sum_gradients");
  constexpr const char* kWhere = "[sum_gradients]";
  const at::NoGradGuard no_grad;
  const at::Tensor sums = sum_over_ranks(
      *sharded->ranks, Rendezvous::kSumGradients, parameters, [&] {
        for (const at::Tensor& parameter : parameters) {
          check(parameter, kWhere, "parameters");
          if (parameter.grad().defined()) {
            check(parameter.grad(), kWhere, "gradients");
          }
        }
        // The number behind a gradient becomes the number of ranks that have it.
        return pack(parameters, [](const at::Tensor& parameter) {
          return parameter.grad();
        });
      });
  unpack(
      parameters,
      sums,
      [](at::Tensor parameter, const at::Tensor& sum, float ranks) {
        if (parameter.grad().defined()) {
          parameter.mutable_grad().copy_(sum);
        } else if (ranks > 0.0F) {
          parameter.mutable_grad() = sum.clone();
        }
      });
}

void broadcast_parameters(
    const std::vector<at::Tensor>& parameters,
    const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  if (sharded == nullptr) {
    return;
  }
  constexpr const char* kWhere = "[broadcast_parameters]";
  const at::NoGradGuard no_grad;
  RankGroup& ranks = *sharded->ranks;
  // All ranks but 0 pass zeros. Adding them changes no value except -0.
  const at::Tensor values =
      sum_over_ranks(ranks, Rendezvous::kBroadcastParameters, parameters, [&] {
        for (const at::Tensor& parameter : parameters) {
          check(parameter, kWhere, "parameters");
          // Each rank would draw initial values of its own later.
          TESSERA_CHECK_VALUE(
              parameter.dim() != 1 || parameter.numel() > 0,
              "{} each parameter must have a size, but one has none, because its layer is not built. Call build() or forward() of the layer on all ranks first.",
              kWhere);
        }
        return pack(parameters, [&](const at::Tensor& parameter) {
          return ranks.rank() == 0 ? parameter : at::Tensor();
        });
      });
  unpack(
      parameters,
      values,
      [](at::Tensor parameter, const at::Tensor& value, float /*unused*/) {
        parameter.copy_(value);
      });
}

}  // namespace tessera::distributed
