// SPDX-License-Identifier: Apache-2.0
// Measures how close the matrix products of the click models of examples/dlrm come to what
// the cores can do. Prints one JSON line for the peak, for each shape and for each layer:
//
//   peak    multiply-adds in registers
//   shapes  one product on one thread, beside at::mm (MKL), OpenBLAS and oneDNN
//   layers  forward and backward of a whole layer on all threads
//
// OpenBLAS and oneDNN are loaded if the system has them. All values are in GFLOP/s.
#include <tessera/common/step_memory.h>
#include <tessera/common/thread_spins.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>

#include "layers/dense/matrix.h"
#include "src/common/active_kernels.h"
#include "tests/benchmarks/torch_benchmark.h"

#include <dlfcn.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace tessera;
using Json = nlohmann::ordered_json;

struct Options : BenchmarkOptions {
  int64_t& rounds = integer("--rounds", 5, "rounds of each line", up_to(1000));
  double& least_ms = real(
      "--min-ms",
      10.0,
      "time of each side in a round",
      CLI::PositiveNumber);
  int64_t& batch = integer("--batch", 1024, "examples of the layers");
  bool& peak_only = flag("--peak", "print only the peak");
  bool& layers_only = flag("--layers", "leave out the single products");
  std::string& isa = text(
      "--isa",
      "avx2 limits all sides to AVX2",
      "",
      CLI::IsMember({"avx2"}));
};

// Runs 12 multiply-adds on vectors `count` times. At least 8 are needed to keep two units
// with a latency of 4 cycles busy.
#if defined(__x86_64__)
constexpr int kSums = 12;

__attribute__((target("avx512f"))) void multiply_add_avx512(int64_t count) {
  __m512 sums[kSums];
  for (__m512& sum : sums) {
    sum = _mm512_setzero_ps();
  }
  const __m512 factor = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(factor, factor, sum);
    }
  }
  for (__m512& sum : sums) {
    asm volatile("" : : "v"(sum));
  }
}

__attribute__((target("avx2,fma"))) void multiply_add_avx2(int64_t count) {
  __m256 sums[kSums];
  for (__m256& sum : sums) {
    sum = _mm256_setzero_ps();
  }
  const __m256 factor = _mm256_set1_ps(0.5F);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(factor, factor, sum);
    }
  }
  for (__m256& sum : sums) {
    asm volatile("" : : "x"(sum));
  }
}
#endif

// The peak of `threads` threads, or 0 if there is no loop for the instruction set.
double measure_peak(const Options& options, int64_t threads) {
  std::vector<double> speeds;
#if defined(__x86_64__)
  const std::string isa = active_kernels().isa;
  const bool has_avx512 = isa == "avx512" || isa.starts_with("avx3");
  if (!has_avx512 && !isa.starts_with("avx2")) {
    return 0.0;
  }
  const auto run = has_avx512 ? multiply_add_avx512 : multiply_add_avx2;
  const int64_t lanes = has_avx512 ? 16 : 8;
  constexpr int64_t kCount = 4'000'000;
  for (int64_t round = 0; round < options.rounds; ++round) {
    const double seconds = seconds_on(threads, [&](int64_t) { run(kCount); });
    speeds.push_back(
        2e-9 * static_cast<double>(kCount * kSums * lanes * threads) / seconds);
  }
#endif
  return speeds.empty() ? 0.0 : median(speeds);
}

// One product: out [rows, columns] = a b, where a is [rows, depth].
struct Shape {
  const char* what;
  int64_t rows;
  int64_t columns;
  int64_t depth;
  bool is_transposed = false;  // a, in memory
};

constexpr Shape kShapes[] = {
    {"DLRM, first layer", 128, 64, 780},
    {"DLRM, its weights' gradient", 64, 780, 128, true},
    {"DLRM, its input's gradient", 128, 780, 64},
    {"second layer", 128, 32, 64},
    {"layer of the numbers", 128, 64, 13},
    {"DCN-v2, x u", 64, 32, 640},
    {"DCN-v2, (x u) v", 64, 640, 32},
    {"DCN-v2, gradient of u", 640, 32, 32, true},
    {"DCN-v2, gradient of v", 32, 640, 32, true},
    {"wide layer", 128, 512, 512},
    {"wide layer, its weights' gradient", 512, 512, 128, true},
};

using CblasSgemm = void (*)(
    int,
    int,
    int,
    int,
    int,
    int,
    float,
    const float*,
    int,
    const float*,
    int,
    float,
    float*,
    int);
using DnnlSgemm = int (*)(
    char,
    char,
    int64_t,
    int64_t,
    int64_t,
    float,
    const float*,
    int64_t,
    const float*,
    int64_t,
    float,
    float*,
    int64_t);

// The function of a library, or nullptr if the system does not have the library. Its other
// symbols stay hidden, because LibTorch has functions of the same names.
template <class Function>
Function find_function(const char* library, const char* name) {
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  return handle == nullptr ? nullptr
                           : reinterpret_cast<Function>(::dlsym(handle, name));
}

using Side = std::pair<std::string, std::function<void()>>;

// The speed of each side, as the median of rounds in which they take turns.
Json speeds_of(
    const Options& options,
    const std::vector<Side>& sides,
    double flops) {
  std::vector<std::vector<double>> speeds(sides.size());
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const size_t i : turns(round, sides.size())) {
      sides[i].second();
      int64_t count = 0;
      const Stopwatch watch;
      while (watch.ms() < options.least_ms) {
        sides[i].second();
        ++count;
      }
      speeds[i].push_back(
          1e-9 * flops * static_cast<double>(count) / watch.seconds());
    }
  }
  Json result;
  for (size_t i = 0; i < sides.size(); ++i) {
    result[sides[i].first] = median(speeds[i]);
  }
  return result;
}

void print(const char* what, const Json& speeds, double peak) {
  Json line{{"what", what}};
  line.update(speeds);
  if (peak > 0.0) {
    line["share_of_peak"] = speeds.front().get<double>() / peak;
  }
  std::cout << line.dump() << std::endl;
}

void measure_shape(const Options& options, const Shape& shape, double peak) {
  static const auto openblas =
      find_function<CblasSgemm>("libopenblas.so.0", "cblas_sgemm");
  static const auto onednn =
      find_function<DnnlSgemm>("libdnnl.so.2", "dnnl_sgemm");
  const at::Tensor a = shape.is_transposed
      ? at::rand({shape.depth, shape.rows}).t()
      : at::rand({shape.rows, shape.depth});
  const at::Tensor b = at::rand({shape.depth, shape.columns});
  at::Tensor out = at::rand({shape.rows, shape.columns});
  const auto* a_data = a.const_data_ptr<float>();
  const auto* b_data = b.const_data_ptr<float>();
  auto* out_data = out.mutable_data_ptr<float>();
  const auto rows = static_cast<int>(shape.rows);
  const auto columns = static_cast<int>(shape.columns);
  const auto depth = static_cast<int>(shape.depth);
  const int a_stride = shape.is_transposed ? rows : depth;
  std::vector<Side> sides{
      {"tessera",
       [&] { multiply(matrix_of(a), matrix_of(b), mutable_matrix_of(out)); }},
      {"at::mm", [&] { at::mm_out(out, a, b); }}};
  if (openblas != nullptr) {
    constexpr int kRowMajor = 101;
    constexpr int kPlain = 111;
    constexpr int kTransposed = 112;
    sides.emplace_back("openblas", [&, rows, columns, depth, a_stride] {
      openblas(
          kRowMajor,
          shape.is_transposed ? kTransposed : kPlain,
          kPlain,
          rows,
          columns,
          depth,
          1.0F,
          a_data,
          a_stride,
          b_data,
          columns,
          0.0F,
          out_data,
          columns);
    });
  }
  if (onednn != nullptr) {
    sides.emplace_back("onednn", [&, rows, columns, depth, a_stride] {
      onednn(
          shape.is_transposed ? 'T' : 'N',
          'N',
          rows,
          columns,
          depth,
          1.0F,
          a_data,
          a_stride,
          b_data,
          columns,
          0.0F,
          out_data,
          columns);
    });
  }
  const double flops =
      2.0 * static_cast<double>(shape.rows * shape.columns * shape.depth);
  print(shape.what, speeds_of(options, sides, flops), peak);
}

// Measures forward and backward of a layer. `products` is the number of multiply-adds of
// its forward pass for an example. The backward pass has twice as many.
template <class Layer>
void measure_layer(
    const Options& options,
    const char* what,
    Layer layer,
    int64_t width,
    double products,
    double peak) {
  const at::Tensor x = at::rand({options.batch, width}).requires_grad_();
  const at::Tensor gradient = at::ones_like(layer->forward(x));
  const auto step = [&] {
    layer->forward(x).backward(gradient);
    // As in a training step, the next gradients are not added to these.
    layer->zero_grad();
    x.mutable_grad().reset();
  };
  const std::vector<Side> sides{{"tessera", step}};
  const double flops = 6.0 * products * static_cast<double>(options.batch);
  print(what, speeds_of(options, sides, flops), peak);
}

// Limits all sides to AVX2. They read these variables at their first call.
void limit_to_avx2() {
  for (const auto& [name, value] :
       {std::pair("TESSERA_ISA", "avx2"),
        std::pair("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
        std::pair("OPENBLAS_CORETYPE", "Haswell"),
        std::pair("DNNL_MAX_CPU_ISA", "AVX2")}) {
    ::setenv(name, value, /*replace=*/1);
  }
}

void run(const Options& options) {
  if (!options.isa.empty()) {
    limit_to_avx2();
  }
  const int64_t threads = at::get_num_threads();
  const double single = measure_peak(options, 1);
  const double peak = measure_peak(options, threads);
  std::cout
      << Json{{"what", "peak"}, {"machine", machine()}, {"one_thread", single}, {"all_threads", peak}}
             .dump()
      << std::endl;
  if (options.peak_only) {
    return;
  }
  if (!options.layers_only) {
    const at::NoGradGuard no_grad;
    at::set_num_threads(1);
    for (const Shape& shape : kShapes) {
      measure_shape(options, shape, single);
    }
    at::set_num_threads(static_cast<int>(threads));
  }
  // The layers of the DLRM and the DCN-v2 of examples/dlrm/click_model.h.
  measure_layer(
      options,
      "DLRM, top MLP",
      MLP(MLPOptions{.units = {64, 32, 1}}),
      796,
      796 * 64 + 64 * 32 + 32,
      peak);
  measure_layer(
      options,
      "DCN-v2, crosses",
      MultiLayerDCN(
          MultiLayerDCNOptions{.projection_dim = 32, .num_layers = 3}),
      640,
      3 * 2 * 640 * 32,
      peak);
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  return run_benchmark(
      argc, argv, "Times the matrix products of click models.", run);
}
