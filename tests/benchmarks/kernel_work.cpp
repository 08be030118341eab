// SPDX-License-Identifier: Apache-2.0
// Runs one kernel on a fixed amount of work. callgrind counts the instructions in
// measured() and nothing else. It links only the kernels.
#include "layers/dense/kernels/dense_kernels.h"
#include "src/kernels/kernels.h"
#include "src/kernels/row_sort.h"
#include "src/kernels/targets.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace tessera::kernels;

constexpr int64_t kVocab = 2000;
constexpr int64_t kIds = 4000;
constexpr int64_t kMaxSummedRows = 512;

struct Data {
  explicit Data(int64_t dim)
      : dim(dim),
        table(kVocab * dim, 0.5F),
        slots(2 * kVocab * dim, 0.1F),
        gradients(kIds * dim, 0.25F),
        out(kIds * dim),
        scratch(4 * dim),
        summed_rows(kVocab),
        sums(kVocab * dim),
        places(kVocab) {
    std::mt19937 random(1);
    for (int64_t i = 0; i < kIds; ++i) {
      ids.push_back(random() % kVocab);
      contributions.push_back({ids.back(), static_cast<uint32_t>(i)});
      sources.push_back({gradients.data() + i * dim, 1.0F});
      wide_ids.push_back(ids.back());
    }
    std::vector<Contribution> unsorted = contributions;
    std::vector<Contribution> other(kIds);
    const Contribution* result =
        sort_by_row(unsorted.data(), other.data(), kIds, 32);
    sorted.assign(result, result + kIds);
  }

  StoredRows rows(Storage storage) {
    return {
        .data = table.data(),
        .dim = dim,
        .storage = storage,
        .rounding = {.is_stochastic = true, .key = 1}};
  }

  int64_t dim;
  std::vector<float> table;
  std::vector<float> slots;
  std::vector<float> gradients;
  std::vector<float> out;
  std::vector<float> scratch;
  std::vector<uint32_t> summed_rows;
  std::vector<float> sums;
  std::vector<uint16_t> places;
  std::vector<uint32_t> ids;
  std::vector<int64_t> wide_ids;
  std::vector<Contribution> contributions;
  std::vector<Contribution> sorted;
  std::vector<GradientSource> sources;
};

using Work = std::function<void()>;

// Makes bags of `bag` ids each.
Work combine(
    const KernelTable& kernels,
    Data& data,
    int64_t bag,
    Storage storage) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= kIds; i += bag) {
    offsets.push_back(i);
  }
  return [&kernels, &data, storage, offsets] {
    kernels.combine(
        {.table = data.rows(storage),
         .ids = data.ids.data(),
         .nnz = kIds,
         .offsets = offsets.data(),
         .out = data.out.data(),
         .end_bag = static_cast<int64_t>(offsets.size()) - 1});
  };
}

// Looks up one id per bag.
Work copy(const KernelTable& kernels, Data& data) {
  return [&kernels, &data] {
    kernels.combine(
        {.table = data.rows(Storage::kFloat32),
         .ids = data.ids.data(),
         .nnz = kIds,
         .out = data.out.data(),
         .end_bag = kIds});
  };
}

// With sums of many rows, as for narrow rows, or without. Scattered contributions are not
// sorted.
enum class Sums { kNone, kOfRows, kOfScattered };

Work update(
    const KernelTable& kernels,
    Data& data,
    const RowRule& rule,
    Storage storage,
    Sums sums = Sums::kNone) {
  return [&kernels, &data, rule, storage, sums] {
    float* scratch = data.scratch.data();
    UpdateArgs args{
        .table = data.rows(storage),
        .slots = {data.slots.data(), data.slots.data() + kVocab * data.dim},
        .contributions = data.sorted.data(),
        .count = kIds,
        .sources = data.sources.data(),
        .gradient = scratch,
        .direction = scratch + data.dim,
        .weights = scratch + 2 * data.dim};
    if (sums == Sums::kOfRows) {
      args.sums = {
          .rows = data.summed_rows.data(),
          .sums = data.sums.data(),
          .max_rows = kMaxSummedRows};
    }
    if (sums == Sums::kOfScattered) {
      args.contributions = data.contributions.data();
      args.sums = {
          .rows = data.summed_rows.data(),
          .sums = data.sums.data(),
          .max_rows = kVocab,
          .places = data.places.data()};
    }
    kernels.update(args, rule);
  };
}

// The dot products of all pairs of 40 features, and their gradients.
class PairwiseWork {
 public:
  explicit PairwiseWork(Data& data) {
    const int64_t size = kExamples * data.dim;
    for (int64_t i = 0; i < kFeatures; ++i) {
      features_.push_back({data.gradients.data() + i * size, data.dim});
      gradients_.push_back({data.out.data() + i * size, data.dim});
    }
    args_ = {
        .features = features_.data(),
        .num_features = kFeatures,
        .dim = data.dim,
        .end_example = kExamples,
        .dots = dots_.data(),
        .dots_gradient = {dots_.data(), kPairs},
        .gradients = gradients_.data()};
  }
  PairwiseWork(const PairwiseWork&) = delete;
  PairwiseWork& operator=(const PairwiseWork&) = delete;

  const PairwiseDotsArgs& args() const {
    return args_;
  }

 private:
  static constexpr int64_t kFeatures = 40;
  static constexpr int64_t kPairs = kFeatures * (kFeatures - 1) / 2;
  static constexpr int64_t kExamples = 64;

  std::vector<FeatureRows<const float>> features_;
  std::vector<FeatureRows<float>> gradients_;
  std::vector<float> dots_ = std::vector<float>(kExamples * kPairs);
  PairwiseDotsArgs args_;
};

// The product of 128 rows and the weights of a layer, with its bias and relu.
class ProductWork {
 public:
  ProductWork(int64_t columns, int64_t depth)
      : columns_(columns),
        depth_(depth),
        a_(kRows * depth, 0.5F),
        b_(depth * columns, 0.25F),
        out_(kRows * columns) {}

  ProductArgs args() {
    return {
        .rows = kRows,
        .columns = columns_,
        .depth = depth_,
        .a = a_.data(),
        .a_row_stride = depth_,
        .b = b_.data(),
        .b_stride = columns_,
        .out = out_.data(),
        .out_stride = columns_,
        .has_relu = true,
        .bias = b_.data()};
  }

  // The gradient of the weights, [depth, columns].
  ProductArgs gradient_args() {
    return {
        .rows = depth_,
        .columns = columns_,
        .depth = kRows,
        .a = a_.data(),
        .a_row_stride = 1,
        .a_column_stride = depth_,
        .b = out_.data(),
        .b_stride = columns_,
        .out = b_.data(),
        .out_stride = columns_};
  }

 private:
  static constexpr int64_t kRows = 128;

  int64_t columns_;
  int64_t depth_;
  std::vector<float> a_;
  std::vector<float> b_;
  std::vector<float> out_;
};

std::map<std::string, Work> all_work(const KernelTable& kernels) {
  const DenseKernelTable& dense =
      *find_table(available_dense_kernels(), kernels.isa);
  static Data narrow(16);
  static Data odd(37);
  static Data wide(128);
  static const PairwiseWork pairs(narrow);
  static ProductWork product(101, 64);  // the last 5 columns fill no vector
  static ProductWork deep(64, 600);  // three blocks of the depth, copied
  static std::vector<Contribution> scratch(kIds);
  static std::vector<uint32_t> narrowed(kIds);
  // All rows have the same bits [2, 6).
  static std::vector<Contribution> of_bin = wide.contributions;
  for (Contribution& contribution : of_bin) {
    contribution.row &= ~0x3CU;
  }
  constexpr Storage kFloat = Storage::kFloat32;
  constexpr float kRate = 0.01F;
  return {
      {"combine_16", combine(kernels, narrow, 40, kFloat)},
      {"combine_37", combine(kernels, odd, 20, kFloat)},
      {"combine_128", combine(kernels, wide, 20, kFloat)},
      {"combine_128_bfloat16", combine(kernels, wide, 20, Storage::kBFloat16)},
      {"combine_128_float16", combine(kernels, wide, 20, Storage::kFloat16)},
      {"copy_128", copy(kernels, wide)},
      {"narrow_int64",
       [&] {
         kernels.narrow_int64(
             wide.wide_ids.data(), kIds, kVocab, narrowed.data());
       }},
      {"sort_by_row",
       [] {
         (void)sort_by_row(wide.contributions.data(), scratch.data(), kIds, 32);
       }},
      {"sort_bin_of_lines",
       [] {
         (void)sort_by_row(of_bin.data(), scratch.data(), kIds, 17, {2, 6});
       }},
      {"fill_normal_128",
       [&] {
         kernels.fill_random(
             {.end_row = kIds, .dim = wide.dim, .out = wide.out.data()});
       }},
      {"sgd_16",
       update(kernels, narrow, SgdRule{kRate}, kFloat, Sums::kOfRows)},
      {"sgd_16_scattered",
       update(kernels, narrow, SgdRule{kRate}, kFloat, Sums::kOfScattered)},
      {"sgd_16_bfloat16",
       update(
           kernels, narrow, SgdRule{kRate}, Storage::kBFloat16, Sums::kOfRows)},
      {"sgd_16_float16",
       update(
           kernels, narrow, SgdRule{kRate}, Storage::kFloat16, Sums::kOfRows)},
      {"sgd_128", update(kernels, wide, SgdRule{kRate}, kFloat)},
      {"adagrad_37", update(kernels, odd, AdagradRule{kRate}, kFloat)},
      {"adagrad_128", update(kernels, wide, AdagradRule{kRate}, kFloat)},
      {"adagrad_128_bfloat16",
       update(kernels, wide, AdagradRule{kRate}, Storage::kBFloat16)},
      {"adam_128", update(kernels, wide, AdamRule{kRate}, kFloat)},
      {"pairwise_dots_16", [&] { dense.pairwise_dots(pairs.args()); }},
      {"pairwise_dots_gradient_16",
       [&] { dense.pairwise_dots_gradient(pairs.args()); }},
      {"product_128x101", [&] { dense.product(product.args()); }},
      {"product_128x64_deep", [&] { dense.product(deep.args()); }},
      {"product_gradient_600x64", [&] { dense.product(deep.gradient_args()); }},
      {"rowwise_adagrad_128",
       update(kernels, wide, RowWiseAdagradRule{kRate}, kFloat)}};
}

}  // namespace

// callgrind counts this function, whose name is the argument of --toggle-collect.
#if defined(__clang__)
#define TESSERA_KEEP __attribute__((noinline))
#else
#define TESSERA_KEEP __attribute__((noinline, noclone))
#endif
extern "C" TESSERA_KEEP void measured(const Work& work) {
  work();
}

int main(int argc, char** argv) {
  const char* isa = std::getenv("TESSERA_ISA");
  const KernelTable* kernels =
      isa == nullptr ? &available_kernels().front() : find_kernels(isa);
  if (kernels == nullptr) {
    std::fprintf(stderr, "kernel_work: this machine lacks %s\n", isa);
    return 77;
  }
  const auto all = all_work(*kernels);
  if (argc != 2) {
    for (const auto& [name, work] : all) {
      std::printf("%s\n", name.c_str());
    }
    return 0;
  }
  const auto found = all.find(argv[1]);
  if (found == all.end()) {
    std::fprintf(
        stderr,
        "kernel_work: no work '%s'. Without arguments all names are printed.\n",
        argv[1]);
    return 1;
  }
  measured(found->second);
  return 0;
}
