// SPDX-License-Identifier: Apache-2.0
// Saves and loads checkpoints of one training run with as many ranks as are started:
//
//   checkpoint_ranks DIRECTORY STEPS [FAULT]
//   checkpoint_ranks DIRECTORY STEPS TIMEOUT_MS PAUSE_MS
//
// It trains up to STEPS from the newest checkpoint of the directory, or from the
// start. It compares tables and slots with those of one process that has trained from
// the start. It saves two checkpoints; every second one is an increment.
//
// With a FAULT, rank 2 does not arrive at the step after the first save: it "stops",
// "is_killed", or "saves" once more. The others print their errors.
//
// With a pause after each step, it saves every five steps, and others have the time to
// disturb it. Rank 0 prints "trains" when the first step is done.
#include <tessera/distributed/sharded_strategy.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/serialization/checkpoint.h>

#include "packages/distributed/tests/rank_test_main.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "tests/features/feature_builders.h"

#include <signal.h>

namespace tessera {
namespace {

constexpr int64_t kFaultyRank = 2;

// The global batch is the same for any number of ranks.
constexpr int64_t kBatch = 12;

TPUEmbeddingOptions options_for(Strategy strategy) {
  const auto table = [](const char* name, int64_t rows, at::ScalarType dtype) {
    return make_table(
        {.name = name,
         .vocabulary_size = rows,
         .dim = 3,
         .dtype = dtype,
         .stochastic_rounding = false});
  };
  const auto with_keys =
      [](const char* name, int64_t capacity, const Eviction& eviction) {
        return feature_of(
            {.name = name,
             .dim = 3,
             .keys = DynamicKeys{
                 .capacity = capacity,
                 .admission = admission::AfterOccurrences{.count = 2},
                 .eviction = eviction}});
      };
  return {
      .features =
          {{"div", FeatureConfig{.table = table("div", 101, at::kFloat)}},
           {"mod", FeatureConfig{.table = table("mod", 53, at::kFloat)}},
           {"copy", FeatureConfig{.table = table("copy", 7, at::kFloat)}},
           {"whole", FeatureConfig{.table = table("whole", 5, at::kFloat)}},
           {"few", FeatureConfig{.table = table("few", 2, at::kFloat)}},
           {"half", FeatureConfig{.table = table("half", 31, at::kBFloat16)}},
           {"bytes", FeatureConfig{.table = table("bytes", 29, at::kChar)}},
           // Three partitions.
           {"keys",
            with_keys(
                "keys", 12'288, eviction::LeastFrequentlyUsed{.half_life = 3})},
           {"whole_keys",
            with_keys("whole_keys", 10, eviction::LeastRecentlyUsed{})}},
      .optimizer = optim::Adam{.learning_rate = 0.1},
      .strategy = std::move(strategy)};
}

Strategy sharded(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return distributed::sharded_strategy(
      backend,
      {.placement = {
           {"mod", TablePlacement::row_wise(RowSplit::kMod)},
           {"few", TablePlacement::row_wise(RowSplit::kMod)},
           {"copy", TablePlacement::data_parallel()},
           {"whole", TablePlacement::table_wise(backend->getSize() - 1)},
           {"whole_keys",
            TablePlacement::table_wise(backend->getSize() / 2)}}});
}

// Examples [begin, end) of a step's global batch.
Features batch(int64_t step, int64_t begin, int64_t end) {
  Features::Map features;
  const std::vector<std::pair<const char*, int64_t>> tables{
      {"div", 101},
      {"mod", 53},
      {"copy", 7},
      {"whole", 5},
      {"few", 2},
      {"bytes", 29},
      {"half", 31}};
  for (const auto& [name, rows] : tables) {
    std::vector<int64_t> ids;
    for (int64_t i = begin; i < end; ++i) {
      ids.push_back((step * 37 + i * i * 11) % rows);
    }
    features.emplace_back(name, at::tensor(ids, at::kLong));
  }
  for (const char* name : {"keys", "whole_keys"}) {
    std::vector<int64_t> keys;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t key = i % 3 == 0 ? i / 2 : (step * kBatch + i) / 3;
      keys.push_back(key * 0x0123'4567'89ab'cdef - 40);
    }
    features.emplace_back(name, at::tensor(keys, at::kLong));
  }
  return Features::map(std::move(features));
}

void train(TPUEmbedding& layer, int64_t to, int64_t rank, int64_t ranks) {
  for (int64_t step = layer->iterations(); step < to; ++step) {
    at::Tensor loss = at::zeros({});
    const auto activations = layer->forward(
        batch(step, kBatch * rank / ranks, kBatch * (rank + 1) / ranks));
    for (const at::Tensor& activation : activations.flatten()) {
      loss = loss + (activation - 0.5).square().sum();
    }
    loss.backward();
  }
}

bool is_close(const at::Tensor& a, const at::Tensor& b, bool is_float) {
  return at::allclose(a, b, is_float ? 1e-3 : 3e-2, is_float ? 1e-4 : 3e-2);
}

// Compares the keys that this process has with those of the whole table.
void compare_keys(const TableState& part, const TableState& all) {
  const KeyIndex& index = part.key_rows->index();
  std::vector<KeyEntry> expected = all.key_rows->index().sorted_entries();
  std::erase_if(
      expected, [&](const KeyEntry& entry) { return !index.owns(entry.key); });
  const std::vector<KeyEntry> entries = index.sorted_entries();
  TORCH_CHECK(
      entries.size() == expected.size(),
      fmt::format(
          "table '{}' has {} keys, expected {}",
          part.name,
          entries.size(),
          expected.size()));
  for (size_t i = 0; i < entries.size(); ++i) {
    const KeyEntry& entry = entries[i];
    const auto equal_rows = [&](const at::Tensor& own, const at::Tensor& full) {
      return is_close(own[entry.row], full[expected[i].row], /*is_float=*/true);
    };
    bool is_equal = entry.key == expected[i].key &&
        entry.last_update == expected[i].last_update &&
        entry.frequency == expected[i].frequency &&
        equal_rows(part.parameters, all.parameters);
    for (size_t j = 0; j < part.slots.size(); ++j) {
      is_equal =
          is_equal && equal_rows(part.slots[j].values, all.slots[j].values);
    }
    TORCH_CHECK(is_equal, "table '", part.name, "' differs at key ", entry.key);
  }
  if (index.owned().count() > 0) {
    const auto sketch = all.key_rows->index().sketch();
    const int64_t counters = index.sketch_size() / index.partitions().count();
    TORCH_CHECK(
        std::equal(
            sketch.begin() + index.owned().begin * counters,
            sketch.begin() + index.owned().end * counters,
            index.sketch().begin()),
        fmt::format("the sketch of table '{}' differs", part.name));
  }
}

// Compares this process's rows of all tables and slots.
void compare(const TPUEmbedding& layer, const TPUEmbedding& whole) {
  const EmbeddingState& part = TableModule::of(*layer)->state();
  const EmbeddingState& all = TableModule::of(*whole)->state();
  for (size_t i = 0; i < part.tables.size(); ++i) {
    const TableState& table = part.tables[i];
    if (table.key_rows != nullptr) {
      compare_keys(table, all.tables[i]);
      continue;
    }
    const bool is_float = table.config->dtype == at::kFloat;
    const auto check = [&](const char* what,
                           const at::Tensor& values,
                           const at::Tensor& full) {
      const kernels::RowNumbers rows = table.rows.numbers;
      for (int64_t row = 0; row < table.rows.count; ++row) {
        TORCH_CHECK(
            is_close(values[row], full[rows[row]], is_float),
            c10::str("table '", table.name, "' ", what, " row ", rows[row]),
            c10::str(" is ", values[row], ", expected ", full[rows[row]]));
      }
    };
    check("parameters", table.parameters, all.tables[i].parameters);
    for (size_t j = 0; j < table.slots.size(); ++j) {
      check(
          table.slots[j].name.c_str(),
          table.slots[j].values,
          all.tables[i].slots[j].values);
    }
  }
}

size_t keys_table(const TPUEmbedding& layer, const std::string& name) {
  const auto& tables = TableModule::of(*layer)->state().tables;
  return std::find_if(
             tables.begin(),
             tables.end(),
             [&](const TableState& table) { return table.name == name; }) -
      tables.begin();
}

void misbehave(TPUEmbedding& layer, const std::string& fault) {
  if (fault == "stops") {
    ::raise(SIGSTOP);
  } else if (fault == "is_killed") {
    ::raise(SIGKILL);
  } else {
    TORCH_CHECK_VALUE(fault == "saves", "unknown fault '", fault, "'");
    layer->save_checkpoint("elsewhere");
  }
}

struct Arguments {
  std::string directory;
  int64_t steps = 0;
  std::string fault = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::chrono::milliseconds pause = {};
};

// The steps at which a run from `begin` saves. At the end it saves twice, so that the last
// checkpoint takes the sketches of the one before.
std::vector<int64_t> saves_of(const Arguments& arguments, int64_t begin) {
  if (arguments.pause.count() == 0) {
    return {(begin + arguments.steps) / 2, arguments.steps, arguments.steps};
  }
  constexpr int64_t kEvery = 5;
  std::vector<int64_t> steps;
  for (int64_t step = begin + kEvery; step < arguments.steps; step += kEvery) {
    steps.push_back(step);
  }
  steps.push_back(arguments.steps);
  return steps;
}

void run(const Arguments& arguments) {
  const auto& [directory, steps, fault, timeout, pause] = arguments;
  const auto backend = test::make_test_backend(timeout);
  const int64_t rank = backend->getRank();
  const int64_t ranks = backend->getSize();
  // One rank may use any strategy, so this one uses Strategy::fused().
  TPUEmbedding layer(
      options_for(ranks == 1 ? Strategy::fused() : sharded(backend)));
  const bool resumes = !list_checkpoints(directory).empty();
  at::Tensor extra = at::zeros({1});
  if (resumes) {
    layer->load_checkpoint(
        directory, {.extra = [&](torch::serialize::InputArchive& archive) {
          archive.read("steps", extra);
        }});
    TORCH_CHECK(
        extra.item<float>() == static_cast<float>(layer->iterations()),
        "the extra archive is of another checkpoint");
  }
  const int64_t begin = layer->iterations();
  TPUEmbedding whole(options_for(Strategy::fused()));
  train(whole, begin, 0, 1);
  compare(layer, whole);
  // The first save is a full checkpoint, and the next two are increments.
  for (const int64_t to : saves_of(arguments, begin)) {
    if (pause.count() > 0) {
      for (int64_t step = layer->iterations(); step < to; ++step) {
        train(layer, step + 1, rank, ranks);
        if (rank == 0 && step == begin) {
          std::cout << "trains" << std::endl;
        }
        std::this_thread::sleep_for(pause);
      }
    }
    train(layer, to, rank, ranks);
    layer->save_checkpoint(
        directory,
        {.keep_last = 100,
         .full_every = 3,
         .file_bytes = 200,
         .extra = [&](torch::serialize::OutputArchive& archive) {
           archive.write("steps", at::full({1}, static_cast<double>(to)));
         }});
    if (!fault.empty() && rank == kFaultyRank) {
      misbehave(layer, fault);
    }
  }
  if (pause.count() == 0 && rank == 0) {
    const auto last =
        std::filesystem::path(directory) / list_checkpoints(directory).back();
    for (const auto& file : std::filesystem::directory_iterator(last)) {
      TORCH_CHECK(
          file.path().string().find(".sketch") == std::string::npos,
          "an increment has the sketch of its parent again: ",
          file.path().string());
    }
  }
  train(whole, steps, 0, 1);
  compare(layer, whole);
  // The last checkpoint has the current rows and counts of all ranks.
  TPUEmbedding again(options_for(Strategy::fused()));
  again->load_checkpoint(directory);
  compare(layer, again);
  for (size_t i :
       {keys_table(whole, "keys"), keys_table(whole, "whole_keys")}) {
    const auto index = [i](const TPUEmbedding& of) -> const KeyIndex& {
      return TableModule::of(*of)->state().tables[i].key_rows->index();
    };
    TORCH_CHECK(
        index(again).counts() == index(whole).counts() &&
            index(whole).counts().admitted > 0,
        "the counts of table ",
        i,
        " differ");
  }
  if (rank == 0) {
    std::cout << fmt::format(
        "{} ranks: steps {} to {}, equal\n", ranks, begin, steps);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    TORCH_CHECK_VALUE(
        argc >= 3 && argc <= 5,
        "expected DIRECTORY STEPS [FAULT | TIMEOUT_MS PAUSE_MS]");
    tessera::Arguments arguments{
        .directory = argv[1], .steps = std::stoll(argv[2])};
    if (argc == 4) {
      arguments.fault = argv[3];
      arguments.timeout = std::chrono::seconds(2);
    } else if (argc == 5) {
      arguments.timeout = std::chrono::milliseconds(std::stoll(argv[3]));
      arguments.pause = std::chrono::milliseconds(std::stoll(argv[4]));
    }
    tessera::run(arguments);
    return 0;
  } catch (const c10::Error& error) {
    // One write, so that lines of ranks do not mix.
    const std::string text = std::string(error.what_without_backtrace()) + "\n";
    std::cerr << text << std::flush;
    return 1;
  }
}
