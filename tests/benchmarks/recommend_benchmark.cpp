// SPDX-License-Identifier: Apache-2.0
// Compares ways to find the best of many items for a user, with filters that pass different
// shares of the items: ./run bench --recommend
//
// The vectors are the truncated singular value decomposition of clicks. The items are
// repeated with noise until there are enough. Each search has another user, and the sides
// take turns.
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/topk.h>

#include <optional>
#include <sstream>

#include "packages/search/src/scan/row_scan.h"
#include "src/common/parallel.h"
#include "tests/benchmarks/torch_benchmark.h"

#ifdef TESSERA_HAS_FAISS
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVF.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/index_factory.h>
#endif
#ifdef TESSERA_HAS_HNSWLIB
#include <hnswlib/hnswlib.h>
#endif

namespace {

using tessera::RowMemory;
using tessera::RowSet;
using tessera::ScanRequest;
using tessera::ScanRows;
using tessera::kernels::QuantizedRow;

struct Options : BenchmarkOptions {
  std::string& clicks =
      text("--clicks", "a file with a user and the user's items on each line");
  int64_t& items = integer("--items", 100'000);
  int64_t& dim = integer("--dim", 64);
  int64_t& k = integer("--k", 20);
  int64_t& searches = integer("--searches", 100, "of each side");
  int64_t& threads = integer("--threads", 1, "of each search");
  double& noise = real("--noise", 0.3, "in standard deviations of the vectors");
  bool& approximate = flag(
      "--approximate",
      "build indexes of faiss and hnswlib that miss items");
};

struct Vectors {
  at::Tensor users = {};  // [users, dim]
  at::Tensor items = {};  // [items, dim]
};

// Iterates on a subspace, which takes a product with the clicks and one with their transpose
// per step.
Vectors decompose(const std::string& path, int64_t dim) {
  std::ifstream file(path);
  TORCH_CHECK(file, "can't read '", path, "'. Pass a file with --clicks.");
  std::vector<int64_t> users;
  std::vector<int64_t> items;
  int64_t num_users = 0;
  for (std::string line; std::getline(file, line); ++num_users) {
    std::istringstream ids(line);
    int64_t id = 0;
    for (ids >> id; ids >> id;) {
      users.push_back(num_users);
      items.push_back(id);
    }
  }
  const int64_t num_items = *std::max_element(items.begin(), items.end()) + 1;
  const auto clicks = [&](const auto& rows, const auto& columns, auto shape) {
    return at::sparse_coo_tensor(
               at::stack({at::tensor(rows), at::tensor(columns)}),
               at::ones({static_cast<int64_t>(rows.size())}),
               shape)
        .coalesce();
  };
  const at::Tensor by_user =
      clicks(users, items, at::IntArrayRef({num_users, num_items}));
  const at::Tensor by_item =
      clicks(items, users, at::IntArrayRef({num_items, num_users}));
  at::Tensor basis = at::randn({num_items, dim});
  for (int step = 0; step < 8; ++step) {
    basis = std::get<0>(
        at::linalg_qr(at::matmul(by_item, at::matmul(by_user, basis))));
  }
  const at::Tensor factors = at::matmul(by_user, basis);
  const at::Tensor roots = factors.norm(2, 0).sqrt();
  return {.users = factors / roots, .items = basis * roots};
}

// A way to search, which returns the positions of the best items.
struct Side {
  std::string name;
  std::function<std::vector<int64_t>(const float* query, const RowSet* allowed)>
      search;
};

class Comparison {
 public:
  explicit Comparison(const Options& options) : options_(options) {
    at::set_num_threads(static_cast<int>(options.threads));
    Vectors vectors = decompose(options.clicks, options.dim);
    users_ = vectors.users;
    const int64_t copies =
        (options.items + vectors.items.size(0) - 1) / vectors.items.size(0);
    items_ = vectors.items.repeat({copies, 1})
                 .narrow(0, 0, options.items)
                 .contiguous();
    items_ += at::randn_like(items_) * items_.std(0) * options.noise;
    const int64_t bytes = QuantizedRow::bytes(options.dim, 8);
    codes_.resize(
        options.items * bytes / sizeof(double) +
        tessera::kernels::kReadAfterRow);
    for (int64_t row = 0; row < options.items; ++row) {
      tessera::kernels::quantize_row(
          item(row),
          options.dim,
          8,
          reinterpret_cast<char*>(codes_.data()) + row * bytes);
    }
    const RowMemory floats{.first = item(0)};
    const RowMemory codes{.quantized_bits = 8, .first = codes_.data()};
    add_scan("int8", {.rows = codes, .num_rows = options.items});
    add_scan(
        "int8 + float32",
        {.rows = codes, .exact_rows = floats, .num_rows = options.items});
    add_scan("float32", {.rows = floats, .num_rows = options.items});
    add_product();
    add_faiss();
    add_hnswlib();
  }

  void compare() {
    fmt::print(
        "{} items of {} numbers, k {}, {}\n",
        options_.items,
        options_.dim,
        options_.k,
        machine());
    time_reading();
    time_batches();
    for (const double share : {0.001, 0.01, 0.1, 0.5, 1.0}) {
      compare_at(share);
    }
  }

 private:
  const float* item(int64_t row) const {
    return items_.const_data_ptr<float>() + row * options_.dim;
  }
  const float* user(int64_t search) const {
    return users_.const_data_ptr<float>() +
        search % users_.size(0) * options_.dim;
  }

  std::vector<std::vector<tessera::ScoredRow>> scan(
      const ScanRows& rows,
      std::span<const ScanRequest> requests) const {
    return tessera::scan(
        rows,
        requests,
        {.num_threads = options_.threads,
         .run_tasks = [&](int64_t count, const auto& task) {
           tessera::run_tasks(
               count,
               options_.items * QuantizedRow::bytes(options_.dim, 8),
               task);
         }});
  }

  void add_scan(const std::string& name, ScanRows rows) {
    rows.dim = options_.dim;
    scans_.emplace_back(name, rows);
    sides_.push_back(
        {name, [this, rows](auto* query, auto* allowed) {
           const ScanRequest request{
               .vector = query, .k = options_.k, .allowed = allowed};
           const auto results = scan(rows, {&request, 1});
           std::vector<int64_t> found;
           for (const auto& row : results[0]) {
             found.push_back(row.number);
           }
           return found;
         }});
  }

  // Scores all items, and sets those that the filter leaves out to -infinity.
  void add_product() {
    sides_.push_back(
        {"matmul, topk", [this](auto* query, auto* allowed) {
           const at::Tensor vector = at::from_blob(
               const_cast<float*>(query), {options_.dim}, at::kFloat);
           at::Tensor scores = at::matmul(items_, vector);
           if (allowed != nullptr) {
             scores.add_(left_out_);
           }
           const at::Tensor best = std::get<1>(at::topk(scores, options_.k));
           const int64_t* id = best.const_data_ptr<int64_t>();
           return std::vector<int64_t>(id, id + options_.k);
         }});
  }

  // Indexes that miss items are searched with several sizes of the search.
  void add_faiss() {
#ifdef TESSERA_HAS_FAISS
    add_faiss("Flat", {1});
    if (options_.approximate) {
      const auto clusters =
          4 * std::llround(std::sqrt(static_cast<double>(options_.items)));
      add_faiss(fmt::format("IVF{},SQ8", clusters), {8, 32, 128});
      constexpr int64_t kMostOfGraph = 200'000;  // takes minutes
      if (options_.items <= kMostOfGraph) {
        add_faiss("HNSW16", {32, 128, 512, 2048});
      } else {
        fmt::print("faiss HNSW16 is left out, because it takes too long\n");
      }
    }
#endif
  }

#ifdef TESSERA_HAS_FAISS
  void add_faiss(const std::string& factory, const std::vector<int>& sizes) {
    const Stopwatch watch;
    const std::shared_ptr<faiss::Index> index(faiss::index_factory(
        static_cast<int>(options_.dim),
        factory.c_str(),
        faiss::METRIC_INNER_PRODUCT));
    index->train(options_.items, item(0));
    index->add(options_.items, item(0));
    fmt::print("faiss {} is built in {:.1f} s\n", factory, watch.ms() / 1e3);
    for (const int size : sizes) {
      sides_.push_back(
          {sizes.size() == 1 ? "faiss " + factory
                             : fmt::format("faiss {}, {}", factory, size),
           [this, index, size](auto* query, auto* allowed) {
             std::optional<faiss::IDSelectorBitmap> selector;
             if (allowed != nullptr) {
               selector.emplace(
                   allowed->words().size_bytes(),
                   reinterpret_cast<const uint8_t*>(allowed->words().data()));
             }
             faiss::SearchParameters plain;
             faiss::SearchParametersIVF clusters;
             clusters.nprobe = static_cast<size_t>(size);
             faiss::SearchParametersHNSW graph;
             faiss::SearchParameters* parameters = &plain;
             if (dynamic_cast<faiss::IndexIVF*>(index.get()) != nullptr) {
               parameters = &clusters;
             }
             if (auto* hnsw = dynamic_cast<faiss::IndexHNSW*>(index.get())) {
               hnsw->hnsw.efSearch = size;  // faiss 1.7.3 ignores the parameter
               parameters = &graph;
             }
             parameters->sel = selector ? &*selector : nullptr;
             std::vector<float> scores(options_.k);
             std::vector<int64_t> found(options_.k);
             index->search(
                 1, query, options_.k, scores.data(), found.data(), parameters);
             return found;
           }});
    }
  }
#endif

  void add_hnswlib() {
#ifdef TESSERA_HAS_HNSWLIB
    if (!options_.approximate) {
      return;
    }
    const Stopwatch watch;
    space_ = std::make_unique<hnswlib::InnerProductSpace>(options_.dim);
    graph_ = std::make_unique<hnswlib::HierarchicalNSW<float>>(
        space_.get(), options_.items, 16, 200);
    for (int64_t row = 0; row < options_.items; ++row) {
      graph_->addPoint(item(row), row);
    }
    fmt::print("hnswlib's graph is built in {:.1f} s\n", watch.ms() / 1e3);
    for (const size_t ef : {32, 128, 512, 2048}) {
      sides_.push_back(
          {fmt::format("hnswlib, {}", ef),
           [this, ef](auto* query, auto* allowed) {
             struct Filter : hnswlib::BaseFilterFunctor {
               const RowSet* allowed = nullptr;
               bool operator()(hnswlib::labeltype row) override {
                 return allowed->contains(static_cast<int64_t>(row));
               }
             } filter;
             filter.allowed = allowed;
             graph_->setEf(ef);
             std::vector<int64_t> found;
             auto best = graph_->searchKnn(
                 query, options_.k, allowed == nullptr ? nullptr : &filter);
             for (; !best.empty(); best.pop()) {
               found.push_back(static_cast<int64_t>(best.top().second));
             }
             return found;
           }});
    }
#endif
  }

  // The time of reading the int8 rows once is what a scan can reach.
  void time_reading() const {
    const double ms = median_ms(options_.searches, [&] {
      std::array<double, 8> sums = {};
      for (size_t i = 0; i + sums.size() <= codes_.size(); i += sums.size()) {
        for (size_t j = 0; j < sums.size(); ++j) {
          sums[j] += codes_[i + j];
        }
      }
      volatile double sink = std::accumulate(sums.begin(), sums.end(), 0.0);
      static_cast<void>(sink);
    });
    fmt::print("reading the int8 rows once: {:.3f} ms\n", ms);
  }

  // How many times as many queries 32 at once are.
  void time_batches() const {
    for (const auto& [name, rows] : scans_) {
      std::vector<ScanRequest> requests;
      for (int64_t i = 0; i < 32; ++i) {
        requests.push_back({.vector = user(i), .k = options_.k});
      }
      std::array<std::vector<double>, 2> times;
      for (int64_t round = 0; round < 2 + options_.searches / 10; ++round) {
        times[0].push_back(seconds_of([&] { scan(rows, requests); }));
        times[1].push_back(seconds_of([&] {
          for (const ScanRequest& request : requests) {
            scan(rows, {&request, 1});
          }
        }));
      }
      const double at_once = median(times[0]);
      fmt::print(
          "{}: 32 queries at once take {:.3f} ms each, {:.2f} times as fast as one by one\n",
          name,
          1e3 * at_once / 32,
          median(times[1]) / at_once);
    }
  }

  void compare_at(double share) {
    std::mt19937 random(3);
    std::bernoulli_distribution passes(share);
    RowSet allowed(options_.items);
    left_out_ = at::zeros({options_.items});
    float* left_out = left_out_.mutable_data_ptr<float>();
    for (int64_t row = 0; row < options_.items; ++row) {
      if (share >= 1.0 || passes(random)) {
        allowed.add(row);
      } else {
        left_out[row] = -std::numeric_limits<float>::infinity();
      }
    }
    const RowSet* filter = share < 1.0 ? &allowed : nullptr;
    const size_t exact = 2;  // float32 finds the best
    std::vector<std::vector<double>> times(sides_.size());
    std::vector<double> recalls(sides_.size());
    for (int64_t search = 0; search < options_.searches; ++search) {
      const float* query = user(search * 37);
      std::vector<int64_t> best = sides_[exact].search(query, filter);
      std::sort(best.begin(), best.end());
      for (const size_t side : turns(search, sides_.size())) {
        const Stopwatch watch;
        const auto found = sides_[side].search(query, filter);
        times[side].push_back(watch.ms());
        recalls[side] +=
            static_cast<double>(std::count_if(
                found.begin(),
                found.end(),
                [&](int64_t row) {
                  return std::binary_search(best.begin(), best.end(), row);
                })) /
            static_cast<double>(best.size());
      }
    }
    fmt::print("a filter that passes {:.1f} %:\n", 100.0 * share);
    for (size_t side = 0; side < sides_.size(); ++side) {
      fmt::print(
          "  {:<22} p50 {:8.3f} ms  p99 {:8.3f} ms  recall {:.4f}\n",
          sides_[side].name,
          median(times[side]),
          quantile(times[side], 0.99),
          recalls[side] / static_cast<double>(options_.searches));
    }
  }

  const Options& options_;
  at::Tensor users_;
  at::Tensor items_;
  at::Tensor
      left_out_;  // [items], -infinity for items that the filter leaves out
  std::vector<double> codes_;  // the int8 rows
  std::vector<std::pair<std::string, ScanRows>> scans_;
  std::vector<Side> sides_;
#ifdef TESSERA_HAS_HNSWLIB
  std::unique_ptr<hnswlib::InnerProductSpace> space_;
  std::unique_ptr<hnswlib::HierarchicalNSW<float>> graph_;
#endif
};

void run(const Options& options) {
  Comparison(options).compare();
}

}  // namespace

TESSERA_BENCHMARK("Finds the best items for users, with filters", run)
