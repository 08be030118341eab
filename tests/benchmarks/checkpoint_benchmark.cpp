// SPDX-License-Identifier: Apache-2.0
// Measures time and memory of checkpoints of a big table, and for comparison the speed of
// dd on the same disk in the same run.
#include <tessera/engine/embedding_engine.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "tests/benchmarks/torch_benchmark.h"

#include <fcntl.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using tessera::EmbeddingEngine;

constexpr int64_t kMebibyte = int64_t{1} << 20;

// The value of a line of /proc/self/status, in MiB.
int64_t status_mebibytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      constexpr int64_t kKibibytes = 1024;
      return std::stoll(line.substr(key.size() + 1)) / kKibibytes;
    }
  }
  return -1;
}

// The peak memory of `work`, in addition to the memory in use before.
int64_t extra_mebibytes(const auto& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const int64_t before = status_mebibytes("VmRSS");
  work();
  return status_mebibytes("VmHWM") - before;
}

void run(const std::string& command) {
  TORCH_CHECK(std::system(command.c_str()) == 0, "failed: ", command);
}

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    bytes +=
        entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : 0;
  }
  return bytes;
}

// Drops the files from the page cache, so that reads go to the disk.
void drop_from_cache(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) {
      continue;
    }
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

struct Options : BenchmarkOptions {
  double& gib = real(
      "--gib",
      4.0,
      "GiB of the table, without slots",
      CLI::Range(0.01, 1e3));
  int64_t& dim = integer("--dim", 64, "floats per row");
  bool& keys = flag("--keys", "the table has keys and a sketch of new ones");
  int64_t& rounds = integer("--rounds", 3, "rounds; the medians are shown");
  std::string& directory = text(
      "--directory",
      "new folder on the disk to measure; it is removed at the end",
      "checkpoint_benchmark",
      CLI::NonexistentPath);
};

EmbeddingEngine make_engine(const Options& options, int64_t rows) {
  tessera::TableConfig table{
      .name = "table",
      .dim = options.dim,
      .initializer = tessera::initializers::Zeros{}};
  if (options.keys) {
    constexpr double kSpareRows = 0.05;  // partitions fill unequally
    table.keys = tessera::DynamicKeys{
        .capacity =
            rows + static_cast<int64_t>(static_cast<double>(rows) * kSpareRows),
        .admission = tessera::admission::AfterOccurrences{.count = 2}};
  } else {
    table.vocabulary_size = rows;
  }
  return EmbeddingEngine(
      {.features =
           {{"id",
             tessera::FeatureConfig{.table = tessera::make_table(table)}}},
       .optimizer = tessera::optim::Adagrad{}});
}

void update(EmbeddingEngine& engine, const at::Tensor& ids, int64_t dim) {
  engine.enqueue({{"id", ids}});
  engine.dequeue();
  engine.apply_gradients({{"id", at::ones({ids.numel(), dim})}});
}

// Updates `count` different rows once.
void touch(EmbeddingEngine& engine, int64_t rows, int64_t count, int64_t dim) {
  update(
      engine,
      at::randperm(rows, at::kLong).slice(0, 0, count).contiguous(),
      dim);
}

// Gives each key a row. The keys come in a random order.
void insert_keys(EmbeddingEngine& engine, int64_t rows, int64_t dim) {
  constexpr int64_t kUpdates = 32;
  for (const at::Tensor& keys :
       at::randperm(rows, at::kLong).tensor_split(kUpdates)) {
    update(engine, at::cat({keys, keys}), dim);  // two occurrences admit a key
  }
}

void report(const char* what, double seconds, double reference, int64_t bytes) {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  fmt::print(
      "{:24} {:6.2f} GB {:7.2f} s {:7.2f} GB/s   dd {:6.2f} s   speed / dd {:5.2f}\n",
      what,
      gigabytes,
      seconds,
      gigabytes / seconds,
      reference,
      reference / seconds);
}

void measure(const Options& options) {
  const fs::path root = options.directory;
  const fs::path checkpoints = root / "checkpoints";
  const fs::path reference = root / "reference";
  fs::create_directories(reference);
  const int64_t row_bytes = options.dim * static_cast<int64_t>(sizeof(float));
  const auto table_bytes =
      static_cast<int64_t>(options.gib * 1024.0) * kMebibyte;
  const int64_t rows = table_bytes / row_bytes;
  EmbeddingEngine engine = make_engine(options, rows);
  if (options.keys) {
    insert_keys(engine, rows, options.dim);
  } else {
    // Half of the slots become other values than zero.
    touch(engine, rows, rows / 2, options.dim);
  }
  fmt::print(
      "{} rows of {}{}, Adagrad: {:.2f} GB with slots, {} rounds, medians\n",
      rows,
      options.dim,
      options.keys ? " with keys" : "",
      static_cast<double>(2 * rows * row_bytes) / 1e9,
      options.rounds);
  const auto write_file = [&](int64_t bytes) {
    fs::remove(reference / "file");
    return seconds_of([&] {
      run(fmt::format(
          "dd if=/dev/zero of={} bs=8M count={} iflag=count_bytes conv=fsync status=none",
          (reference / "file").string(),
          bytes));
    });
  };
  const std::string read_file = fmt::format(
      "dd if={} of=/dev/null bs=8M status=none", (reference / "file").string());
  std::vector<double> dd_write;
  std::vector<double> dd_read;
  std::vector<double> save;
  std::vector<double> load;
  std::vector<double> increment;
  std::vector<double> dd_increment;
  int64_t bytes = 0;
  int64_t increment_bytes = 0;
  int64_t extra_save = 0;
  int64_t extra_load = 0;
  const tessera::CheckpointOptions full{.keep_last = 1, .full_every = 2};
  for (int64_t round = 0; round < options.rounds; ++round) {
    fs::remove_all(checkpoints);
    extra_save =
        std::max(extra_save, extra_mebibytes([&] {
                   save.push_back(seconds_of([&] {
                     engine.save_checkpoint(checkpoints.string(), full);
                   }));
                 }));
    bytes = bytes_in(checkpoints);
    dd_write.push_back(write_file(bytes));
    drop_from_cache(root);
    dd_read.push_back(seconds_of([&] { run(read_file); }));
    drop_from_cache(root);
    extra_load = std::max(extra_load, extra_mebibytes([&] {
                            load.push_back(seconds_of([&] {
                              engine.load_checkpoint(checkpoints.string());
                            }));
                          }));
    // A load marks all rows as changed. A new full checkpoint resets that, so that the
    // next save is incremental.
    fs::remove_all(checkpoints);
    engine.save_checkpoint(checkpoints.string(), full);
    touch(engine, rows, rows / 100, options.dim);
    increment.push_back(seconds_of(
        [&] { engine.save_checkpoint(checkpoints.string(), full); }));
    increment_bytes = bytes_in(checkpoints) - bytes;
    dd_increment.push_back(write_file(increment_bytes));
  }
  report("save", median(save), median(dd_write), bytes);
  report("load", median(load), median(dd_read), bytes);
  report(
      "save after touching 1 %",
      median(increment),
      median(dd_increment),
      increment_bytes);
  fmt::print(
      "peak extra memory        save {} MiB, load {} MiB\n",
      extra_save,
      extra_load);
  fs::remove_all(root);
}

}  // namespace

TESSERA_BENCHMARK("Saves and loads checkpoints of a big table.", measure)
