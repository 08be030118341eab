// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/dataset.h>

#include "packages/data/src/random_stream.h"
#include "packages/data/tests/dataset_rows.h"

#include <sys/wait.h>
#include <unistd.h>

namespace tessera::data::dataset_test {

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

const at::Tensor& tensor_of(const Columns& columns, const char* name) {
  return std::get<at::Tensor>(columns.at(name).values);
}

at::Tensor has_even_id(const Columns& columns) {
  return tensor_of(columns, "id").remainder(2).eq(0);
}

Columns one_column(const std::string& name, Column column) {
  return columns_of({{name, std::move(column)}});
}

// The order of shuffle(), written again.
Rows shuffled(const Rows& rows, int64_t buffer, int64_t seed, int64_t epoch) {
  const auto random = [&](int64_t block) {
    return RandomStream(
        static_cast<uint64_t>(seed),
        static_cast<uint64_t>(epoch),
        static_cast<uint64_t>(block));
  };
  const auto size = static_cast<int64_t>(rows.size());
  int64_t end = size <= buffer ? size : 1 + random(-1).below(buffer);
  Rows result;
  for (int64_t begin = 0, block = 0; begin < size; ++block) {
    Rows some(rows.begin() + begin, rows.begin() + end);
    RandomStream stream = random(block);
    for (size_t i = some.size(); i > 1; --i) {
      std::swap(
          some[i - 1],
          some[static_cast<size_t>(stream.below(static_cast<int64_t>(i)))]);
    }
    result.insert(result.end(), some.begin(), some.end());
    begin = end;
    end = std::min(size, end + buffer);
  }
  return result;
}

TEST(DatasetTest, KnowsItsSizeAndReadsFromAnyExample) {
  EXPECT_EQ(Dataset(to_columns(make_rows(100))).size(), 100);
  for (const bool knows_size : {true, false}) {
    const Dataset dataset = row_dataset(100, 7, knows_size);
    EXPECT_EQ(dataset.size().has_value(), knows_size);
    EXPECT_EQ(read_ids(dataset, 3, 97), range(97, 100));
    EXPECT_EQ(read_ids(dataset, 0, 101), Ids{});
  }
}

TEST(DatasetTest, ReadsTensorsThatAreNotContiguous) {
  Columns columns;
  const at::Tensor values = at::arange(10, at::kLong).view({5, 2});
  columns.add("a", {.values = values.select(1, 1)});
  columns.add(
      "b", {.values = at::ones({5}, at::kFloat).set_requires_grad(true)});
  const Columns batch =
      *Dataset(columns).shuffle({.buffer = 3}).batch({.size = 5})(0).next();
  std::vector<int64_t> ids = to_vector(tensor_of(batch, "a"));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (Ids{1, 3, 5, 7, 9}));
  EXPECT_FALSE(tensor_of(batch, "b").requires_grad());
}

TEST(DatasetTest, DatasetsToConcatenateHaveTheSameColumns) {
  const Dataset ids(one_column("id", integers({1, 2})));
  const Dataset texts(one_column("id", text({"3"})));
  EXPECT_EQ(ids.take(0).concatenate(ids).cache().head(1).batch_size(), 1);
  EXPECT_VALUE_ERROR(
      ids.concatenate(texts).head(),
      "[Dataset] concatenate(): expected the column 'id' (integers) as before, but "
      "got 'id' (text)");
}

TEST(DatasetTest, HeadReadsTheFirstExamples) {
  for (const int64_t chunk : {1, 7, 100}) {
    const Dataset dataset = row_dataset(20, chunk, false);
    EXPECT_EQ(to_rows(dataset.head()), make_rows(5));
    EXPECT_EQ(to_rows(dataset.head(50)), make_rows(20));
    EXPECT_EQ(dataset.head(0).batch_size(), 0);
  }
  EXPECT_VALUE_ERROR(
      row_dataset(5, 5, true).head(-1), "head() expected a number of examples");
}

TEST(DatasetTest, TakesAndSkipsAnyNumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const bool knows_size : {true, false}) {
    const Dataset dataset = row_dataset(20, 7, knows_size);
    EXPECT_EQ(read_ids(dataset.skip(kMax).skip(kMax)), Ids{});
    EXPECT_EQ(read_ids(dataset.take(kMax)), range(0, 20));
  }
  EXPECT_EQ(row_dataset(20).skip(5).take(10).size(), 10);
  EXPECT_EQ(row_dataset(20).skip(50).size(), 0);
  EXPECT_EQ(row_dataset(20, 7, false).take(5).size(), std::nullopt);
}

// Each of the 24 orders of four examples has the same probability, and another seed gives
// other orders.
TEST(DatasetTest, AShuffleOfAllExamplesIsUniform) {
  const Dataset dataset = row_dataset(4).shuffle({.buffer = 4, .seed = 7});
  std::map<std::vector<int64_t>, int> counts;
  constexpr int kEpochs = 2400;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    ++counts[read_ids(dataset, epoch)];
  }
  ASSERT_EQ(counts.size(), 24);
  double chi_square = 0.0;
  for (const auto& [order, count] : counts) {
    chi_square += (count - 100.0) * (count - 100.0) / 100.0;
  }
  EXPECT_LT(chi_square, 49.7);  // 23 degrees of freedom, p = 0.001
  const auto shuffled_by = [](int64_t seed) {
    return read_ids(row_dataset(100).shuffle({.buffer = 100, .seed = seed}));
  };
  EXPECT_NE(shuffled_by(1), shuffled_by(2));
}

TEST(DatasetTest, BlocksOfAShuffleBeginElsewhereInEachEpoch) {
  const Dataset dataset = row_dataset(100).shuffle({.buffer = 10, .seed = 1});
  std::set<int64_t> neighbours_of_50;
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    const std::vector<int64_t> ids = read_ids(dataset, epoch);
    for (size_t i = 0; i < ids.size(); ++i) {
      // No example moves by a block or more.
      EXPECT_LT(std::abs(ids[i] - static_cast<int64_t>(i)), 10);
    }
    const auto found = std::find(ids.begin() + 1, ids.end(), 50);
    neighbours_of_50.insert(*(found - 1));
  }
  EXPECT_GT(neighbours_of_50.size(), 10);
}

TEST(DatasetTest, AMapMayChangeItsArgument) {
  Columns columns = one_column("a", numbers({1.0F, 2.0F}));
  const Dataset dataset = Dataset(columns).map([](Columns examples) {
    std::get<at::Tensor>(examples.at("a").values).mul_(10.0F);
    return examples;
  });
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const Columns batch = *dataset.batch({.size = 2})(epoch).next();
    expect_close(tensor_of(batch, "a"), floats({10.0F, 20.0F}));
  }
  const Columns batch = *Dataset(columns).batch({.size = 2})(0).next();
  tensor_of(batch, "a").mul_(0.0F);
  expect_close(tensor_of(columns, "a"), floats({1.0F, 2.0F}));
}

TEST(DatasetTest, CachesTheExamples) {
  const auto source = std::make_shared<RowSource>(make_rows(100), 7);
  const Dataset dataset = Dataset(source).cache();
  EXPECT_EQ(source->num_opened, 0);
  const Dataset shuffled_one = dataset.shuffle({.buffer = 100});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(read_rows(dataset, epoch), make_rows(100));
    EXPECT_EQ(read_ids(dataset, epoch, 90), range(90, 100));
    EXPECT_EQ(read_rows(shuffled_one, epoch).size(), 100);
  }
  EXPECT_EQ(source->num_opened, 1);
  EXPECT_EQ(source->num_read, 100);
  // The order before the cache is that of epoch 0.
  const Dataset fixed = row_dataset(50).shuffle({.buffer = 50}).cache();
  EXPECT_EQ(read_ids(fixed, 9), read_ids(fixed, 0));
  EXPECT_EQ(read_ids(row_dataset(0).cache()), Ids{});
}

TEST(DatasetTest, ACacheHasALimit) {
  const Dataset dataset = Dataset(one_column("a", integers({1, 2, 3})));
  EXPECT_EQ(
      dataset.cache({.max_bytes = 24})
          .batch({.size = 3})(0)
          .next()
          ->batch_size(),
      3);
  const Dataset small = dataset.cache({.max_bytes = 23});
  for (int i = 0; i < 2; ++i) {
    EXPECT_VALUE_ERROR(
        small.open(),
        "cache() got more than max_bytes = 23 bytes in the first 3 examples. Increase max_bytes");
  }
  // Lists and text count, too.
  EXPECT_VALUE_ERROR(
      Dataset(one_column("a", ragged(integers({1, 2}), {0, 2})))
          .cache({.max_bytes = 31})
          .open(),
      "more than max_bytes = 31");
  EXPECT_VALUE_ERROR(
      Dataset(one_column("a", text({std::string(1000, 'x')})))
          .cache({.max_bytes = 1000})
          .open(),
      "more than max_bytes = 1000");
}

TEST(DatasetTest, SkipsBatchesWithoutReadingThem) {
  const auto source = std::make_shared<RowSource>(make_rows(10'000), 10);
  BatchReader reader = Dataset(source).batch({.size = 10})(0);
  EXPECT_EQ(reader.skip(900), 900);
  EXPECT_EQ(to_rows(*reader.next()).front().id, 9000);
  EXPECT_EQ(reader.skip(50), 50);
  EXPECT_EQ(to_rows(*reader.next()).front().id, 9510);
  EXPECT_EQ(reader.position(), (BatchPosition{.epoch = 0, .batch = 952}));
  EXPECT_EQ(reader.skip(1000), 48);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(reader.skip(1), 0);
  EXPECT_LE(source->num_read, 100);
}

TEST(DatasetTest, ResumesAtAPosition) {
  const Batches batches =
      row_dataset(100).shuffle({.buffer = 30}).batch({.size = 8}).prefetch(3);
  BatchReader reader = batches(4);
  for (int i = 0; i < 5; ++i) {
    reader.next();
  }
  const BatchPosition position = reader.position();
  EXPECT_EQ(position, (BatchPosition{.epoch = 4, .batch = 5}));
  BatchReader resumed = batches.resume(position);
  EXPECT_EQ(resumed.position(), position);
  for (Columns& batch : reader) {
    EXPECT_EQ(to_rows(batch), to_rows(*resumed.next()));
  }
  EXPECT_FALSE(resumed.next().has_value());
  EXPECT_VALUE_ERROR(
      batches.resume({.epoch = 0, .batch = 14}),
      "expected to skip 14 batches, but epoch 0 has only 13");
  EXPECT_VALUE_ERROR(
      batches.resume({.epoch = 0, .batch = -1}), "batch >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      batches.resume({.epoch = -1, .batch = 0}), "epoch >= 0, but got -1");
}

TEST(DatasetTest, MapsWholeBatches) {
  const Batches batches =
      row_dataset(20)
          .batch({.size = 8})
          .map([](Columns columns, const MapContext& context) {
            EXPECT_TRUE(context.is_batch);
            return one_column(
                "first",
                integers(
                    {context.epoch, context.first_row, columns.batch_size()}));
          });
  BatchReader reader = batches(2);
  reader.skip(1);
  EXPECT_EQ(to_vector(tensor_of(*reader.next(), "first")), (Ids{2, 8, 8}));
  EXPECT_EQ(to_vector(tensor_of(*reader.next(), "first")), (Ids{2, 16, 4}));
  EXPECT_FALSE(reader.next().has_value());
}

// A chain of steps and the same in plain loops.
struct Chain {
  Dataset dataset;
  std::function<Rows(int64_t)> rows_of;  // of an epoch
  bool knows_size = true;
  std::string text = {};
};

class RandomChain {
 public:
  explicit RandomChain(uint64_t seed) : random_(seed) {}

  int64_t number(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  Chain make() {
    const int64_t size = number(0, 3) == 0 ? number(0, 3) : number(1, 200);
    const Rows rows = make_rows(size);
    const int64_t chunk = number(1, 60);
    const int64_t kind = number(0, 2);
    Chain chain{
        .dataset = kind == 0
            ? Dataset(to_columns(rows))
            : Dataset(std::make_shared<RowSource>(rows, chunk, kind == 1)),
        .rows_of = [rows](int64_t) { return rows; },
        .knows_size = kind != 2,
        .text = c10::str(size, " rows, kind ", kind, ", chunk ", chunk)};
    for (int64_t steps = number(0, 5); steps > 0; --steps) {
      add_step(chain);
    }
    return chain;
  }

 private:
  void add_step(Chain& chain) {
    const auto rows_of = chain.rows_of;
    const int64_t count = number(0, 120);
    switch (number(0, 6)) {
      case 0:
        chain.text += c10::str(", take ", count);
        chain.dataset = chain.dataset.take(count);
        chain.rows_of = [=](int64_t epoch) {
          Rows rows = rows_of(epoch);
          rows.resize(std::min(rows.size(), static_cast<size_t>(count)));
          return rows;
        };
        return;
      case 1:
        chain.text += c10::str(", skip ", count / 3);
        chain.dataset = chain.dataset.skip(count / 3);
        chain.rows_of = [=](int64_t epoch) {
          const Rows rows = rows_of(epoch);
          const auto first =
              std::min<int64_t>(count / 3, static_cast<int64_t>(rows.size()));
          return Rows(rows.begin() + first, rows.end());
        };
        return;
      case 2: {
        const int64_t divisor = number(1, 4);
        chain.text += c10::str(", filter ", divisor);
        chain.knows_size = false;
        chain.dataset = chain.dataset.filter([=](const Columns& columns) {
          return tensor_of(columns, "id").remainder(divisor).eq(0);
        });
        chain.rows_of = [=](int64_t epoch) {
          Rows rows = rows_of(epoch);
          std::erase_if(
              rows, [=](const Row& row) { return row.id % divisor != 0; });
          return rows;
        };
        return;
      }
      case 3:
        chain.text += ", map";
        chain.dataset = chain.dataset.map(
            [](const Columns& columns, const MapContext& context) {
              EXPECT_FALSE(context.is_batch);
              Rows rows = test::to_rows(columns);
              add_context(rows, context.epoch, context.first_row);
              return test::to_columns(rows);
            });
        chain.rows_of = [=](int64_t epoch) {
          Rows rows = rows_of(epoch);
          add_context(rows, epoch, 0);
          return rows;
        };
        return;
      case 5: {
        const Rows more = make_rows(count / 3);
        const int64_t skipped = count / 9;
        const bool knows_size = number(0, 1) == 1;
        chain.text += c10::str(", concatenate ", more.size(), " ", knows_size);
        chain.knows_size = chain.knows_size && knows_size;
        chain.dataset = chain.dataset.concatenate(
            Dataset(std::make_shared<RowSource>(more, 7, knows_size))
                .skip(skipped));
        chain.rows_of = [=](int64_t epoch) {
          Rows rows = rows_of(epoch);
          rows.insert(rows.end(), more.begin() + skipped, more.end());
          return rows;
        };
        return;
      }
      case 4:
        chain.text += ", cache";
        chain.dataset = chain.dataset.cache();
        chain.rows_of = [=](int64_t) { return rows_of(0); };
        return;
      default: {
        const int64_t buffer = number(1, 150);
        const int64_t seed = number(0, 10);
        chain.text += c10::str(", shuffle ", buffer, " ", seed);
        chain.dataset = chain.dataset.shuffle({.buffer = buffer, .seed = seed});
        chain.rows_of = [=](int64_t epoch) {
          return shuffled(rows_of(epoch), buffer, seed, epoch);
        };
      }
    }
  }

  static void add_context(Rows& rows, int64_t epoch, int64_t first_row) {
    for (Row& row : rows) {
      row.price += static_cast<float>(epoch * 1000);
      row.tags.push_back(first_row++);
      row.name += "!";
    }
  }

  std::mt19937_64 random_;
};

TEST(DatasetTest, RandomChainsEqualPlainLoops) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomChain random(seed);
    const Chain chain = random.make();
    const detail::BatchOptions options{
        .size = random.number(1, 40), .drop_last = random.number(0, 1) == 1};
    Batches batches = chain.dataset.batch(options);
    if (random.number(0, 1) == 1) {
      batches = batches.prefetch(random.number(1, 4));
    }
    SCOPED_TRACE(c10::str(
        "seed ",
        seed,
        ": ",
        chain.text,
        ", batch ",
        options.size,
        " ",
        options.drop_last));
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      const Rows expected = chain.rows_of(epoch);
      const auto size = static_cast<int64_t>(expected.size());
      ASSERT_EQ(read_rows(chain.dataset, epoch), expected);
      ASSERT_EQ(chain.dataset.size().has_value(), chain.knows_size);
      ASSERT_EQ(chain.dataset.size().value_or(size), size);
      const int64_t first = random.number(0, size + 5);
      ASSERT_EQ(
          read_rows(chain.dataset, epoch, first),
          Rows(expected.begin() + std::min(first, size), expected.end()));
      // Some batches are read and others skipped.
      const int64_t num_batches =
          (size + (options.drop_last ? 0 : options.size - 1)) / options.size;
      ASSERT_EQ(batches.size().has_value(), chain.knows_size);
      ASSERT_EQ(batches.size().value_or(num_batches), num_batches);
      BatchReader reader = batches(epoch);
      for (int64_t batch = 0; batch <= num_batches; ++batch) {
        if (random.number(0, 2) == 0) {
          const int64_t skipped = reader.skip(random.number(0, 5));
          batch += skipped;
        }
        ASSERT_EQ(reader.position().batch, batch);
        const std::optional<Columns> columns = reader.next();
        ASSERT_EQ(columns.has_value(), batch < num_batches);
        if (columns) {
          const int64_t begin = batch * options.size;
          ASSERT_EQ(
              to_rows(*columns),
              Rows(
                  expected.begin() + begin,
                  expected.begin() + std::min(size, begin + options.size)));
        }
      }
    }
  }
}

TEST(DatasetTest, ThreadsReadTheSame) {
  const Batches batches = row_dataset(500, 7, false)
                              .filter(has_even_id)
                              .cache()
                              .shuffle({.buffer = 60})
                              .batch({.size = 16})
                              .prefetch(2);
  Rows expected;
  for (Columns& batch : row_dataset(500)
                            .filter(has_even_id)
                            .shuffle({.buffer = 60})
                            .batch({.size = 16})(1)) {
    const Rows rows = to_rows(batch);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  std::vector<Rows> found(4);
  run_in_threads(found.size(), [&](size_t i) {
    for (Columns& batch : batches(1)) {
      const Rows some = to_rows(batch);
      found[i].insert(found[i].end(), some.begin(), some.end());
    }
  });
  for (const Rows& rows : found) {
    EXPECT_EQ(rows, expected);
  }
}

TEST(DatasetTest, PrefetchRaisesErrorsAfterTheBatchesBeforeThem) {
  const Batches batches =
      row_dataset(100)
          .batch({.size = 10})
          .map([](Columns columns, const MapContext& context) {
            if (context.first_row == 30) {
              throw std::runtime_error("no fourth batch");
            }
            return columns;
          });
  for (const Batches& some :
       {batches, batches.prefetch(1), batches.prefetch(8)}) {
    BatchReader reader = some(0);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(reader.next().has_value());
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_THROW(reader.next(), std::runtime_error);
      EXPECT_THROW(reader.skip(1), std::runtime_error);
    }
    // The reader of another epoch starts again.
    EXPECT_TRUE(some(1).next().has_value());
  }
}

TEST(DatasetTest, PrefetchReadsNoMoreThanItsQueueAndStopsAtAnyTime) {
  std::atomic<int64_t> calls = 0;
  const Batches batches = row_dataset(1000)
                              .batch({.size = 10})
                              .map([&](Columns columns) {
                                ++calls;
                                return columns;
                              })
                              .prefetch(3);
  for (int64_t reads = 0; reads < 20; ++reads) {
    calls = 0;
    {
      BatchReader reader = batches(reads);
      for (int64_t i = 0; i < reads; ++i) {
        reader.next();
      }
    }
    // The batches in the queue, and one that waits for its place.
    EXPECT_GE(calls, reads);
    EXPECT_LE(calls, reads + 4);
  }
  BatchReader moved = batches(0);
  moved.next();
  moved = batches(1);
  BatchReader target = std::move(moved);
  EXPECT_TRUE(target.next().has_value());
  EXPECT_TORCH_ERROR(moved.next(), "moved from");  // NOLINT
  EXPECT_TORCH_ERROR(moved.position(), "moved from");  // NOLINT
}

TEST(DatasetTest, AForkedChildCanNotUseAPrefetchingReaderButCloseIt) {
  std::optional<BatchReader> reader =
      row_dataset(100).batch({.size = 10}).prefetch(2)(0);
  EXPECT_TRUE(reader->next().has_value());
  const pid_t child = ::fork();
  if (child == 0) {
    bool is_refused = false;
    try {
      reader->next();
    } catch (const c10::Error& error) {
      is_refused =
          std::string(error.what()).find("forked child") != std::string::npos;
    }
    reader.reset();  // does not wait for a thread that the child lacks
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(reader->next().has_value());
}

TEST(DatasetTest, EmptyDataGiveNoBatches) {
  for (const Dataset& dataset :
       {row_dataset(0),
        row_dataset(0, 7, false),
        Dataset(test::to_columns({}))}) {
    const Batches batches = dataset.cache()
                                .shuffle({.buffer = 10})
                                .filter(has_even_id)
                                .take(5)
                                .batch({.size = 3})
                                .prefetch(1);
    BatchReader reader = batches(0);
    EXPECT_FALSE(reader.next().has_value());
    EXPECT_EQ(reader.skip(1), 0);
  }
}

TEST(DatasetTest, RefusesOptions) {
  const Dataset dataset = row_dataset(3);
  EXPECT_VALUE_ERROR(
      dataset.batch({}), "size of batch() must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(
      dataset.shuffle({}), "buffer of shuffle() must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(dataset.shuffle({.buffer = -5}), "but got -5");
  EXPECT_VALUE_ERROR(dataset.take(-1), "take() expected a number of examples");
  EXPECT_VALUE_ERROR(dataset.skip(-1), "skip() expected a number of examples");
  EXPECT_VALUE_ERROR(dataset.cache({.max_bytes = 0}), "max_bytes");
  EXPECT_VALUE_ERROR(dataset.filter(nullptr), "expected a predicate");
  const std::function<Columns(Columns)> no_function;
  EXPECT_VALUE_ERROR(
      dataset.map(no_function), "[Dataset] map() expected a function");
  EXPECT_VALUE_ERROR(
      dataset.batch({.size = 1}).map(no_function),
      "[Batches] map() expected a function");
  EXPECT_VALUE_ERROR(
      dataset.map(std::function<Columns(Columns, const MapContext&)>()),
      "expected a function");
  EXPECT_VALUE_ERROR(dataset.open(-1), "epoch");
  EXPECT_VALUE_ERROR(dataset.open(0, -1), "but got 0 and -1");
  const Batches batches = dataset.batch({.size = 1});
  EXPECT_VALUE_ERROR(batches.prefetch(0), "in [1, 65536], but got 0");
  EXPECT_VALUE_ERROR(batches.prefetch(1 << 20), "in [1, 65536]");
  EXPECT_VALUE_ERROR(batches(-1), "epoch >= 0, but got -1");
  EXPECT_VALUE_ERROR(batches(0).skip(-1), "batches >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      Dataset(std::shared_ptr<const ExampleSource>()), "expected a source");
  EXPECT_VALUE_ERROR(Dataset{Columns()}, "expected at least one column");
}

TEST(DatasetTest, RefusesResultsOfFunctions) {
  const Dataset dataset = row_dataset(30, 30);
  const auto filter = [&](const at::Tensor& result) {
    return dataset.filter([=](const Columns&) { return result; });
  };
  EXPECT_TYPE_ERROR(
      read_rows(filter({})), "predicate of filter() must return bool [30]");
  EXPECT_TYPE_ERROR(read_rows(filter(at::ones({30}))), "predicate of filter()");
  EXPECT_VALUE_ERROR(
      read_rows(filter(at::ones({2}, at::kBool))), "one for each example");
  EXPECT_VALUE_ERROR(
      read_rows(filter(at::ones({30, 1}, at::kBool))), "one for each example");
  EXPECT_VALUE_ERROR(
      read_rows(dataset.map(
          [](const Columns&) { return one_column("a", integers({1})); })),
      "got 30 examples, but returned 1");
  EXPECT_VALUE_ERROR(
      read_rows(dataset.map([](const Columns&) { return Columns(); })),
      "returned 0");
  const Dataset changing =
      row_dataset(30, 7).map([](Columns columns, const MapContext& context) {
        columns.add(
            c10::str("at ", context.first_row == 0),
            {.values = at::zeros({columns.batch_size()})});
        return columns;
      });
  EXPECT_VALUE_ERROR(
      read_rows(changing),
      "function of map(): expected the column 'at 1' (floats) as before, but got 'at 0' (floats)");
  EXPECT_VALUE_ERROR(
      read_rows(dataset.map([](const Columns& columns) {
        columns.at("price of another name");
        return columns;
      })),
      "no column 'price of another name'. Known: id, price, name, tags, words");
}

// A source of given chunks.
class ChunkSource : public ExampleSource {
 public:
  explicit ChunkSource(std::vector<Columns> chunks)
      : chunks(std::move(chunks)) {}

  std::unique_ptr<ExampleReader> open(int64_t) const override {
    return std::make_unique<Reader>(*this);
  }
  std::optional<int64_t> size() const override {
    return num_examples;
  }

  std::vector<Columns> chunks;
  std::optional<int64_t> num_examples;

 private:
  struct Reader : ExampleReader {
    explicit Reader(const ChunkSource& source) : source(source) {}
    std::optional<Columns> next() override {
      return i < source.chunks.size() ? std::optional(source.chunks[i++])
                                      : std::nullopt;
    }
    const ChunkSource& source;
    size_t i = 0;
  };
};

void read_all(const Dataset& dataset) {
  for (const Columns& batch : dataset.batch({.size = 2})(0)) {
    EXPECT_GT(batch.batch_size(), 0);
  }
}

TEST(DatasetTest, RefusesSourcesWhoseChunksDiffer) {
  const auto read = [](Columns second) {
    read_all(Dataset(std::make_shared<ChunkSource>(
        std::vector{one_column("a", integers({1, 2})), std::move(second)})));
  };
  read(one_column("a", integers({3})));
  EXPECT_VALUE_ERROR(
      read(one_column("b", integers({3}))),
      "the source: expected the column 'a' (integers) as before, but got 'b' (integers)");
  EXPECT_VALUE_ERROR(
      read(one_column("a", numbers({3.0F}))), "but got 'a' (floats)");
  EXPECT_VALUE_ERROR(
      read(one_column("a", ragged(integers({3}), {0, 1}))),
      "but got 'a' (lists of integers)");
  Columns two = one_column("a", integers({3}));
  two.add("b", integers({3}));
  EXPECT_VALUE_ERROR(read(two), "expected 1 columns as before, but got 2");
  EXPECT_VALUE_ERROR(read(Columns()), "expected columns, but got none");
  EXPECT_VALUE_ERROR(
      read(one_column("a", integers({}))), "columns without examples");
}

TEST(DatasetTest, RefusesSourcesThatShrinkOrGrow) {
  const auto source = std::make_shared<ChunkSource>(
      std::vector{one_column("a", integers({1, 2, 3}))});
  const Dataset unknown{source};
  read_all(unknown);
  source->chunks.push_back(one_column("a", integers({4})));
  EXPECT_VALUE_ERROR(
      read_all(unknown), "expected 3 examples from the source, but got 4");
  source->chunks = {one_column("a", integers({1}))};
  EXPECT_VALUE_ERROR(read_all(unknown), "expected 3 examples");
  source->chunks = {one_column("b", integers({1, 2, 3}))};
  EXPECT_VALUE_ERROR(read_all(unknown), "expected the column 'a'");
  source->num_examples = 5;
  EXPECT_VALUE_ERROR(
      read_all(Dataset(source)),
      "expected 5 examples from the source, but got 3. Do not change the files");
  source->chunks.clear();
  EXPECT_VALUE_ERROR(read_all(Dataset(source)), "but got 0");
}

}  // namespace tessera::data::dataset_test
