// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>

namespace tessera::test {

/// Checks that a built layer gives the same results bit for bit as its clone, a layer
/// that is rebuilt from its JSON, and a layer that is not built before it loads the
/// archive.
template <class Holder>
void expect_equal_copies(
    Holder layer,
    const std::function<at::Tensor(Holder&)>& run) {
  using Impl = typename Holder::ContainedType;
  const at::NoGradGuard no_grad;
  layer->eval();
  const at::Tensor expected = run(layer);

  Holder clone(std::dynamic_pointer_cast<Impl>(layer->clone()));
  EXPECT_TRUE(at::equal(run(clone), expected));
  for (const auto& parameter : layer->named_parameters()) {
    const at::Tensor other = clone->named_parameters()[parameter.key()];
    EXPECT_FALSE(parameter.value().is_alias_of(other)) << parameter.key();
  }

  std::stringstream archive;
  torch::save(layer, archive);
  register_models();
  const std::string text = to_json(layer).dump();
  auto rebuilt = from_json<Holder>(Json::parse(text));
  EXPECT_EQ(to_json(rebuilt).dump(), text);
  EXPECT_EQ(rebuilt->options(), layer->options());
  torch::load(rebuilt, archive);
  rebuilt->eval();
  EXPECT_TRUE(at::equal(run(rebuilt), expected));

  Holder loaded(layer->options());
  archive.seekg(0);
  torch::load(loaded, archive);
  loaded->eval();
  EXPECT_TRUE(at::equal(run(loaded), expected));
}

}  // namespace tessera::test
