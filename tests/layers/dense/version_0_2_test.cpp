// SPDX-License-Identifier: Apache-2.0
// Files of version 0.2 in tests/version_0_2/. Commit 9d8ac1a6, the last one of 0.2.0, wrote
// them by to_json() and save_to_file() after a training step of the tables. outputs.pt has
// the results that it computed.
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/layer_json.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/serialization/json_file.h>

#include "tests/test_files.h"
#include "tests/test_util.h"

namespace tessera::test::version_0_2_test {

std::string file(const std::string& name) {
  return test_file("version_0_2/" + name);
}

template <class Holder>
Holder load(const std::string& name) {
  auto layer = from_json<Holder>(load_json(file(name + ".json")));
  torch::load(layer, file(name + ".pt"));
  return layer;
}

std::vector<at::Tensor> outputs() {
  std::vector<at::Tensor> tensors;
  torch::load(tensors, file("outputs.pt"));
  return tensors;
}

TEST(Version02Test, ModelsAndSlotsOfTablesAreUnchanged) {
  const Features batch{
      {"user", int64s({1, 3})},
      {"movie", int64s({0, 4})},
      {"history", RaggedFeature{int64s({1, 2, 4}), int64s({0, 1, 3})}}};
  const auto expected = outputs();
  size_t next = 0;
  for (const char* name : {"dot", "cross", "mlp"}) {
    SCOPED_TRACE(name);
    auto model = load<torch::nn::Sequential>(name);
    const auto before = model->forward(batch);
    expect_close(before, expected.at(next++));
    before.square().sum().backward();  // updates the tables with their slots
    expect_close(model->forward(batch), expected.at(next++));
  }
}

TEST(Version02Test, ATableOfADenseLayerIsUnchanged) {
  auto reduce = load<EmbedReduce>("reduce");
  expect_close(
      reduce->forward(int64s({5, 0, 2, 2}).view({2, 2})), outputs().at(6));
}

}  // namespace tessera::test::version_0_2_test
