// SPDX-License-Identifier: Apache-2.0
// Publishes StampedRows until it is killed: endless_publisher DIRECTORY FIRST_STEP
#include <tessera/common/thread_spins.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/tests/stamped_rows.h"
#include "src/engine/embedding_state.h"

#include <array>

namespace {

using tessera::test::StampedRows;

struct Model : torch::nn::Module {
  Model() {
    const auto table = tessera::make_table(
        {.name = "rows",
         .vocabulary_size = StampedRows::kRows,
         .dim = StampedRows::kDim});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features = {{"row", tessera::FeatureConfig{.table = table}}}}));
  }
  tessera::TPUEmbedding embedding = nullptr;
};

// Writes rows as an update does.
void write(Model& model, int64_t first, int64_t step) {
  tessera::TableModule& tables = *model.embedding;
  tables.change_state([&](tessera::EmbeddingState& state) {
    tessera::TableState& table = state.tables[0];
    auto* rows = static_cast<float*>(table.parameters.mutable_data_ptr());
    for (int64_t row = 0; row < StampedRows::kRows; ++row) {
      if (step == first || StampedRows::writes(row, step)) {
        StampedRows::fill(row, step, rows + row * StampedRows::kDim);
        table.mark(std::array{row});
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  if (argc != 3) {
    std::fprintf(stderr, "expected a directory and a step\n");
    return 2;
  }
  try {
    const int64_t first = std::atoll(argv[2]);
    const auto model = std::make_shared<Model>();
    tessera::serving::Publisher publisher(
        model,
        argv[1],
        {.full_every = 20,
         .full_share = 10.0,
         .keep_last = 3,
         .keep_seconds = 0.0,
         .background = first % 2 == 1});
    for (int64_t step = first;; ++step) {
      write(*model, first, step);
      publisher.publish(
          {.step = step, .metrics = {{"first", static_cast<double>(first)}}});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
