// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>
#include <tessera/search/faiss_index.h>

#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <dlfcn.h>

namespace tessera::faiss_index_test {

// faiss_unavailable_test covers builds without faiss.
class FaissIndexTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_faiss()) {
      GTEST_SKIP() << "built without faiss";
    }
  }
};

// Returns vectors around a few centers, as towers make them. Their components are
// whole numbers, so dot products do not depend on the order of the sum.
at::Tensor clusters(int64_t count, int64_t dim) {
  const at::Tensor centers = at::randn({20, dim});
  const at::Tensor vectors =
      centers.index_select(0, at::arange(count).remainder(20)) +
      at::randn({count, dim}) * 0.5;
  return (vectors * 8.0).round();
}

// Returns the share of results that are as good as those of the exact index. It
// compares scores, because ties have no order.
double recall(const TopK& found, const TopK& exact) {
  const at::Tensor lowest = exact.scores.narrow(1, exact.scores.size(1) - 1, 1);
  return found.scores.ge(lowest).to(at::kDouble).mean().item<double>();
}

// faiss and LibTorch each bring a BLAS, and both use the one that is loaded first.
// Debian's plain BLAS would make LibTorch many times slower.
TEST_F(FaissIndexTest, LeavesLibTorchItsOwnBlas) {
  void* const torch = ::dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  ASSERT_NE(torch, nullptr);
  void* const sgemm = ::dlsym(torch, "sgemm_");
  if (sgemm == nullptr) {
    GTEST_SKIP() << "this LibTorch hides its BLAS";
  }
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "sgemm_"), sgemm);
  ::dlclose(torch);
}

TEST_F(FaissIndexTest, FlatMatchesTheExactIndex) {
  // The vectors are all binary numbers of ten digits. A query has the powers of two
  // in random order and with random signs, so no two scores are equal.
  const at::Tensor digits = at::arange(10);
  const at::Tensor vectors = at::arange(1024)
                                 .unsqueeze(1)
                                 .bitwise_right_shift(digits)
                                 .bitwise_and(1)
                                 .to(at::kFloat);
  const at::Tensor powers =
      at::rand({300, 10}).argsort(int64_t{1}).to(at::kFloat).exp2();
  const at::Tensor queries = powers * (at::randint(2, {300, 10}) * 2 - 1);
  const at::Tensor ids = at::arange(1024) * 3 + 5;
  const auto exact = make_exact_index(vectors, ids)->search(queries, 10);
  const auto found =
      make_faiss_index(vectors, ids, {.factory = "Flat"})->search(queries, 10);
  EXPECT_TRUE(at::equal(found.ids, exact.ids));
  EXPECT_TRUE(at::equal(found.scores, exact.scores));
}

TEST_F(FaissIndexTest, ApproximateIndicesFindMostOfTheBest) {
  const at::Tensor vectors = clusters(2000, 16);
  const at::Tensor queries = clusters(100, 16);
  const auto exact = make_exact_index(vectors)->search(queries, 10);
  const at::Tensor products = at::matmul(queries, vectors.t());
  const auto recall_of = [&](const FaissIndexOptions& options) {
    const auto found =
        make_faiss_index(vectors, {}, options)->search(queries, 10);
    EXPECT_TRUE(at::equal(products.gather(1, found.ids), found.scores));
    return recall(found, exact);
  };
  EXPECT_GT(recall_of({.factory = "HNSW32", .ef_search = 200}), 0.8);
  const double wide = recall_of({.factory = "IVF16,Flat", .nprobe = 8});
  const double narrow = recall_of({.factory = "IVF16,Flat"});
  EXPECT_GT(wide, 0.8);
  EXPECT_GT(wide, narrow);  // nprobe has an effect
  EXPECT_EQ(recall_of({.factory = "IVF16,Flat", .nprobe = 16}), 1.0);
}

TEST_F(FaissIndexTest, LeavesOutExcludedIds) {
  const at::Tensor vectors = at::arange(50).view({50, 1}).to(at::kFloat) + 1.0;
  const auto index = make_faiss_index(vectors, {}, {.factory = "Flat"});
  const TopK found = index->search(
      at::ones({2, 1}),
      3,
      {.values = int64s({49, 47, 48}), .row_splits = int64s({0, 2, 3})});
  EXPECT_TRUE(
      at::equal(found.ids, int64s({48, 46, 45, 49, 47, 46}).view({2, 3})));
}

TEST_F(FaissIndexTest, FillsMissingResultsWithIdMinusOne) {
  const auto index = make_faiss_index(
      clusters(2000, 4), {}, {.factory = "IVF16,Flat"});  // probes 1 of 16
  const TopK found = index->search(at::randn({1, 4}), 2000);
  EXPECT_GE(found.ids[0][0].item<int64_t>(), 0);
  EXPECT_EQ(found.ids[0][1999].item<int64_t>(), -1);
  EXPECT_EQ(
      found.scores[0][1999].item<float>(),
      -std::numeric_limits<float>::infinity());
}

TEST_F(FaissIndexTest, RoundTripsThroughAFile) {
  const TemporaryFolder folder;
  const auto path = folder / "index";
  const at::Tensor vectors = clusters(2000, 16);
  const at::Tensor queries = clusters(50, 16);
  for (const auto& options :
       {FaissIndexOptions{.factory = "HNSW16", .ef_search = 100},
        FaissIndexOptions{.factory = "IVF16,Flat", .nprobe = 3},
        FaissIndexOptions{.factory = "IVF16,SQ8", .nprobe = 3}}) {
    const auto index = make_faiss_index(vectors, at::arange(2000) + 9, options);
    index->save(path);
    const TopK expected = index->search(queries, 7);
    const TopK found = load_faiss_index(path)->search(queries, 7);
    EXPECT_TRUE(at::equal(found.ids, expected.ids)) << options.factory;
    EXPECT_TRUE(at::equal(found.scores, expected.scores)) << options.factory;
  }
}

TEST_F(FaissIndexTest, RefusesDamagedAndOtherFiles) {
  const TemporaryFolder folder;
  const auto path = folder / "index";
  make_exact_index(at::ones({2, 2}))->save(path);
  EXPECT_VALUE_ERROR(
      load_faiss_index(path), "but its format is 'tessera exact index'");
  EXPECT_VALUE_ERROR(
      (make_faiss_index(at::ones({2, 2}), {}, {.factory = "Flat"})->save(path),
       load_exact_index(path)),
      "but its format is 'tessera faiss index'");

  const NamedTensors whole = load_safetensors(path);
  const auto save_with = [&](const std::string& name, at::Tensor tensor) {
    NamedTensors changed = whole;
    for (auto& entry : changed.tensors) {
      entry.second = entry.first == name ? tensor : entry.second.clone();
    }
    save_safetensors(changed, path);
  };
  at::Tensor bytes = whole["index"].clone();
  bytes[bytes.size(0) - 1].add_(1);
  const std::string where =
      "[load_faiss_index '" + path + "'] the file is damaged: ";
  save_with("index", bytes);
  EXPECT_VALUE_ERROR(
      load_faiss_index(path), where + "the index must have the checksum");
  save_with("ids", int64s({1, 2, 3}));
  EXPECT_VALUE_ERROR(
      load_faiss_index(path),
      where +
          "the index must compare by inner product and have one vector per id.");
  save_with("ids", int64s({1, 1}));
  EXPECT_VALUE_ERROR(load_faiss_index(path), where + "[TopKIndex] ids must");
  save_with("ids", at::ones({2}));
  EXPECT_VALUE_ERROR(load_faiss_index(path), where + "[TopKIndex] ids must be");
  save_with("longest", at::ones({2}));
  EXPECT_VALUE_ERROR(
      load_faiss_index(path), where + "'longest' must be a finite number");
  save_safetensors({.tensors = {}, .metadata = whole.metadata}, path);
  EXPECT_VALUE_ERROR(
      load_faiss_index(path),
      where + "[NamedTensors] there is no tensor 'index'");
}

TEST_F(FaissIndexTest, RefusesWhatFaissRefuses) {
  const at::Tensor vectors = at::randn({100, 10});
  const auto make = [&](const FaissIndexOptions& options) {
    make_faiss_index(vectors, {}, options);
  };
  EXPECT_VALUE_ERROR(
      make({.factory = "Foo"}), "[make_faiss_index 'Foo'] faiss");
  EXPECT_VALUE_ERROR(make({.factory = ""}), "faiss refuses");
  EXPECT_VALUE_ERROR(make({.factory = "IVF1024,Flat"}), "faiss refuses");
  EXPECT_VALUE_ERROR(make({.factory = "PQ3"}), "faiss refuses");
  EXPECT_VALUE_ERROR(
      make({.factory = "IVF0,Flat"}),
      "must be in [1, 65536] for these vectors");
  EXPECT_VALUE_ERROR(make({.factory = "PQ0"}), "but got 0.");
  EXPECT_VALUE_ERROR(
      make({.factory = "IVF99999999999,Flat"}), "but got 99999999999.");
  EXPECT_VALUE_ERROR(make({.factory = "HNSW65537"}), "but got 65537.");
  EXPECT_VALUE_ERROR(
      make({.factory = "IVF99999999999999999999,Flat"}),
      "[make_faiss_index 'IVF99999999999999999999,Flat'] a number");
  EXPECT_VALUE_ERROR(make({.factory = "HNSW32", .nprobe = 3}), "nprobe");
  EXPECT_VALUE_ERROR(make({.factory = "Flat", .ef_search = 3}), "efSearch");
  EXPECT_VALUE_ERROR(
      make({.factory = "HNSW32", .ef_search = 0}), "must be in [1, 2^31 - 1]");
  EXPECT_VALUE_ERROR(
      make_faiss_index(vectors * std::nan("")), "vectors must be finite");
  EXPECT_VALUE_ERROR(
      make_faiss_index(vectors, int64s({1})), "[100], but got [1]");
}

}  // namespace tessera::faiss_index_test
