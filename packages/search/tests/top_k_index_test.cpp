// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>
#include <tessera/search/top_k_index.h>

#include "tests/temporary_folder.h"
#include "tests/test_util.h"

namespace tessera::top_k_index_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns small integers. Their products are exact, so scores can be real ties.
at::Tensor integers(int64_t rows, int64_t dim) {
  return at::randint(-3, 4, {rows, dim}).to(at::kFloat);
}

// Finds the best by a stable sort, which keeps the order of ties.
TopK search_by_sort(
    const at::Tensor& queries,
    const at::Tensor& vectors,
    int64_t k) {
  const auto [scores, ids] = at::matmul(queries, vectors.t())
                                 .sort(/*stable=*/true, 1, /*descending=*/true);
  return {scores.narrow(1, 0, k), ids.narrow(1, 0, k)};
}

void expect_same(const TopK& found, const TopK& expected) {
  EXPECT_TRUE(at::equal(found.scores, expected.scores));
  EXPECT_TRUE(at::equal(found.ids, expected.ids));
}

TEST(ExactIndexTest, FindsTheBestWithTiesInOrder) {
  // More vectors and queries than one block has.
  const at::Tensor vectors = integers(9'000, 3);
  const at::Tensor queries = integers(260, 3);
  const auto index = make_exact_index(vectors);
  EXPECT_EQ(index->size(), 9'000);
  EXPECT_EQ(index->dim(), 3);
  for (const int64_t k : {1, 10, 300}) {
    expect_same(index->search(queries, k), search_by_sort(queries, vectors, k));
  }
}

TEST(ExactIndexTest, FindsAllVectors) {
  const at::Tensor vectors = integers(17, 4);
  const at::Tensor queries = integers(2, 4);
  expect_same(
      make_exact_index(vectors)->search(queries, 17),
      search_by_sort(queries, vectors, 17));
}

TEST(ExactIndexTest, AnswersWithTheGivenIds) {
  const at::Tensor vectors = floats({1.0F, 3.0F, 2.0F}).view({3, 1});
  const auto index = make_exact_index(vectors, int32s({70, 50, 60}));
  const TopK found = index->search(at::ones({1, 1}), 2);
  EXPECT_TRUE(at::equal(found.ids, int64s({50, 60}).view({1, 2})));
  expect_close(found.scores, floats({3.0F, 2.0F}).view({1, 2}));
}

TEST(ExactIndexTest, LeavesOutTheExcludedIdsOfEachQuery) {
  const at::Tensor vectors = floats({4.0F, 3.0F, 2.0F, 1.0F}).view({4, 1});
  const auto index = make_exact_index(vectors, int64s({10, 20, 30, 40}));
  const TopK found = index->search(
      at::ones({3, 1}),
      2,
      {.values = int32s({20, 10, 99, 20, 20, 30, 10}),
       .row_splits = int32s({0, 2, 2, 7})});
  const at::Tensor expected = int64s({30, 40, 10, 20, 40, -1}).view({3, 2});
  EXPECT_TRUE(at::equal(found.ids, expected));
  expect_close(
      found.scores,
      floats({2.0F, 1.0F, 4.0F, 3.0F, 1.0F, -kInfinity}).view({3, 2}));
}

TEST(ExactIndexTest, TakesOtherDtypesAndStrides) {
  const at::Tensor vectors = integers(4, 50).t();  // [50, 4], not contiguous
  const at::Tensor queries = integers(3, 4);
  const TopK expected = search_by_sort(queries, vectors, 5);
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    expect_same(
        make_exact_index(vectors.to(dtype))->search(queries.to(dtype), 5),
        expected);
  }
}

// Finds ids 0, 1, ... for every query, and records its calls.
class RecordingIndex : public TopKIndex {
 public:
  explicit RecordingIndex(int64_t size)
      : TopKIndex(
            detail::index_vectors(at::ones({size, 1}), "[RecordingIndex]"),
            {}) {}

  void save(const std::string&) const override {}

  mutable std::vector<std::pair<int64_t, int64_t>> calls;  // queries, k

 private:
  TopK nearest(const at::Tensor& queries, int64_t k) const override {
    calls.emplace_back(queries.size(0), k);
    return {
        .scores = at::zeros({queries.size(0), k}),
        .ids = at::arange(k).expand({queries.size(0), k}).contiguous()};
  }
};

TEST(TopKIndexTest, OneQueryWithManyExclusionsDoesNotSlowTheOthers) {
  const RecordingIndex index(400'000);
  // The 300th of 600 queries excludes half of the ids, and the 301st all of them.
  std::vector<int64_t> splits(601, 0);
  std::fill(splits.begin() + 300, splits.end(), 200'000);
  std::fill(splits.begin() + 301, splits.end(), 700'000);
  const at::Tensor values = at::cat({at::arange(200'000), at::arange(500'000)});
  const TopK found = index.search(
      at::ones({600, 1}),
      10,
      {.values = values, .row_splits = at::tensor(splits, at::kLong)});
  int64_t queries = 0;
  int64_t queries_of_k_10 = 0;
  for (const auto& [count, k] : index.calls) {
    queries += count;
    queries_of_k_10 += k == 10 ? count : 0;
    EXPECT_LE(count, 256);
    EXPECT_TRUE(count == 1 || count * k <= 300'000) << count << " * " << k;
  }
  EXPECT_EQ(queries, 600);
  EXPECT_EQ(queries_of_k_10, 598);
  EXPECT_LE(index.calls.size(), 6);
  EXPECT_EQ(found.ids[298][0].item<int64_t>(), 0);
  EXPECT_EQ(found.ids[299][0].item<int64_t>(), 200'000);
  EXPECT_EQ(found.ids[300][0].item<int64_t>(), -1);
  EXPECT_EQ(found.ids[599][9].item<int64_t>(), 9);
}

TEST(ExactIndexTest, NoQueriesGetNoAnswers) {
  const TopK found =
      make_exact_index(at::ones({4, 2}))
          ->search(
              at::ones({0, 2}),
              3,
              {.values = at::zeros({0}, at::kLong), .row_splits = int64s({0})});
  EXPECT_EQ(found.ids.sizes(), at::IntArrayRef({0, 3}));
}

TEST(ExactIndexTest, DoesNotCopyTheVectors) {
  const at::Tensor vectors = at::ones({4, 2});
  const int64_t before = vectors.storage().use_count();
  const auto index = make_exact_index(vectors);
  EXPECT_GT(vectors.storage().use_count(), before);
}

TEST(ExactIndexTest, RoundTripsThroughAFile) {
  const TemporaryFolder folder;
  const auto path = folder / "movies.safetensors";
  const at::Tensor vectors = integers(100, 4);
  const at::Tensor queries = integers(5, 4);
  const auto index = make_exact_index(vectors, at::arange(100) + 7);
  index->save(path);
  expect_same(
      load_exact_index(path)->search(queries, 9), index->search(queries, 9));
}

TEST(ExactIndexTest, RefusesOtherFiles) {
  const TemporaryFolder folder;
  const auto path = folder / "movies.safetensors";
  EXPECT_TORCH_ERROR(load_exact_index(path), "movies.safetensors");
  save_safetensors({.tensors = {{"vectors", at::ones({2, 2})}}}, path);
  EXPECT_VALUE_ERROR(
      load_exact_index(path),
      "expected a file of the format 'tessera exact index', but its format is "
      "''. Load a file that the save() of such an index wrote.");
}

TEST(ExactIndexTest, NamesADamagedFile) {
  const TemporaryFolder folder;
  const auto path = folder / "movies.safetensors";
  const auto load =
      [&](std::vector<std::pair<std::string, at::Tensor>> tensors) {
        save_safetensors(
            {.tensors = std::move(tensors),
             .metadata = {{"format", "tessera exact index"}}},
            path);
        load_exact_index(path);
      };
  const std::string where =
      "[load_exact_index '" + path + "'] the file is damaged: ";
  const at::Tensor vectors = at::ones({2, 2});
  EXPECT_VALUE_ERROR(
      load({{"vectors", vectors}}),
      where + "[NamedTensors] there is no tensor 'ids'");
  EXPECT_VALUE_ERROR(
      (load({{"vectors", vectors}, {"ids", int64s({1})}})),
      where + "[TopKIndex] ids must be");
  EXPECT_VALUE_ERROR(
      (load({{"vectors", vectors}, {"ids", floats({1, 2})}})),
      where + "[TopKIndex] ids must be int32 or int64");
  EXPECT_VALUE_ERROR(
      (load({{"vectors", vectors / 0.0}, {"ids", int64s({1, 2})}})),
      where + "[make_exact_index] vectors must be finite");
}

TEST(ExactIndexTest, RefusesWrongVectors) {
  EXPECT_VALUE_ERROR(make_exact_index({}), "got an undefined tensor");
  EXPECT_VALUE_ERROR(make_exact_index(at::ones({3})), "must be a matrix");
  EXPECT_VALUE_ERROR(make_exact_index(at::ones({0, 3})), "one vector or more");
  EXPECT_VALUE_ERROR(make_exact_index(at::ones({3, 0})), "must be a matrix");
  EXPECT_TYPE_ERROR(
      make_exact_index(at::ones({3, 2}, at::kLong)), "must be floats");
  EXPECT_VALUE_ERROR(
      make_exact_index(at::full({2, 2}, kInfinity)), "must be finite");
  EXPECT_VALUE_ERROR(
      make_exact_index(at::full({2, 2}, 1e300, at::kDouble)),
      "NaN or infinity as float32");
}

TEST(ExactIndexTest, RefusesWrongIds) {
  const at::Tensor vectors = at::ones({3, 2});
  EXPECT_VALUE_ERROR(
      make_exact_index(vectors, int64s({1, 2})), "[3], but got [2]");
  EXPECT_VALUE_ERROR(
      make_exact_index(vectors, int64s({1, 2, 1})),
      "ids must be unique, but 1 occurs more than once");
  EXPECT_VALUE_ERROR(
      make_exact_index(vectors, int64s({1, -1, 2})),
      "must be >= 0, but got -1");
  EXPECT_TYPE_ERROR(
      make_exact_index(vectors, floats({1, 2, 3})), "must be int32 or int64");
}

TEST(ExactIndexTest, RefusesWrongSearches) {
  const auto index = make_exact_index(at::ones({3, 2}));
  const at::Tensor good = at::ones({1, 2});
  EXPECT_VALUE_ERROR(
      index->search(good, 0),
      "k must be in [1, 3], the number of vectors, but got 0. Set it to the number of results per query.");
  EXPECT_VALUE_ERROR(
      index->search(good, 4),
      "k must be in [1, 3], the number of vectors, but got 4. Lower k.");
  EXPECT_VALUE_ERROR(index->search(at::ones({2}), 1), "must be a matrix");
  EXPECT_VALUE_ERROR(index->search(at::ones({1, 3}), 1), "dim, 2, but got 3");
  EXPECT_TYPE_ERROR(
      index->search(at::ones({1, 2}, at::kInt), 1), "must be floats");
  EXPECT_VALUE_ERROR(
      index->search(good * std::nan(""), 1), "queries must be finite");
  EXPECT_VALUE_ERROR(
      make_exact_index(at::full({1, 1}, 1e20F))
          ->search(at::full({1, 1}, 1e20F), 1),
      "scores may overflow float32");
}

TEST(ExactIndexTest, RefusesWrongExclusions) {
  const auto index = make_exact_index(at::ones({3, 2}));
  const auto run = [&](at::Tensor values, at::Tensor row_splits) {
    index->search(
        at::ones({1, 2}),
        1,
        {.values = std::move(values), .row_splits = std::move(row_splits)});
  };
  EXPECT_VALUE_ERROR(
      run(int64s({1}), {}),
      "row_splits of shape [2], one bag per query, dense and on the CPU, but got "
      "values: Long of shape [1] and row_splits: no tensor.");
  EXPECT_VALUE_ERROR(
      run({}, int64s({0, 0})),
      "but got values: no tensor and row_splits: Long of shape [2].");
  EXPECT_VALUE_ERROR(run(floats({1}), int64s({0, 1})), "int32 or int64 values");
  EXPECT_VALUE_ERROR(
      run(int64s({1}), int64s({0, 1, 1})), "row_splits of shape [2]");
  EXPECT_VALUE_ERROR(
      run(int64s({1}), int64s({0, 2})),
      "the row_splits of excluded must begin with 0, must not decrease, and must "
      "end with the number of its values, 1.");
  EXPECT_VALUE_ERROR(
      run(int64s({1}), int64s({1, 1})),
      "the row_splits of excluded must begin with 0, must not decrease, and must "
      "end with the number of its values, 1.");
}

}  // namespace tessera::top_k_index_test
