// SPDX-License-Identifier: Apache-2.0
// Times what serving a model that is being trained costs: lookups in published rows, beside
// a plain gather of the same rows, and the way from a training step to a changed row in
// another process, with the latencies of that process.
#include <tessera/common/thread_spins.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/reader.h>
#include <tessera/serving/short_time_slices.h>

#include "tests/benchmarks/torch_benchmark.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
namespace serving = tessera::serving;

struct Options : BenchmarkOptions {
  int64_t& rows = integer("--rows", 10'000'000, "rows of the table");
  int64_t& dim = integer("--dim", 64, "numbers per row", up_to(4096));
  int64_t& ids = integer("--ids", 4096, "ids per lookup");
  int64_t& bag =
      integer("--bag", 20, "ids per bag of pooled lookups", up_to(4096));
  int64_t& rounds = integer("--rounds", 5, "rounds; the medians are shown");
  double& share =
      real("--share", 0.01, "share of the rows that change per second");
  double& seconds = real("--seconds", 20.0, "seconds of training");
  double& every = real("--every", 0.1, "seconds between two versions");
  double& rate = real("--rate", 1000.0, "requests per second");
  bool& separate =
      flag("--separate", "training on core 0, and the other process on core 1");
  std::string& part = text(
      "--part",
      "lookups, freshness or all",
      "all",
      CLI::IsMember({"lookups", "freshness", "all"}));
  std::string& directory = text(
      "--directory",
      "new folder for the versions; it is removed at the end",
      "live_benchmark",
      CLI::NonexistentPath);
};

double now() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) +
      1e-9 * static_cast<double>(time.tv_nsec);
}

// Like a server that waits for its next request. A loop instead would use up the time that
// the system gives to a thread.
void sleep_until(double time) {
  timespec until = {};
  until.tv_sec = static_cast<time_t>(time);
  until.tv_nsec =
      static_cast<int64_t>(1e9 * (time - static_cast<double>(until.tv_sec)));
  ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

// Binds this process to one core.
void run_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::sched_setaffinity(0, sizeof(cores), &cores);
}

struct Model : torch::nn::Module {
  Model(int64_t rows, int64_t dim) {
    const auto table = tessera::make_table(
        {.name = "rows",
         .vocabulary_size = rows,
         .dim = dim,
         .combiner = tessera::Combiner::kSum});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features = {{"row", tessera::FeatureConfig{.table = table}}},
            .optimizer = tessera::optim::Adagrad{.learning_rate = 0.01}}));
  }
  void train(const at::Tensor& ids) {
    embedding->forward({{"row", ids}})["row"].sum().backward();
  }
  tessera::TPUEmbedding embedding = nullptr;
};

using Batches = std::vector<std::vector<int64_t>>;

Batches random_batches(const Options& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  Batches batches(200, std::vector<int64_t>(static_cast<size_t>(options.ids)));
  for (auto& batch : batches) {
    for (int64_t& id : batch) {
      id = static_cast<int64_t>(random() % static_cast<uint64_t>(options.rows));
    }
  }
  return batches;
}

// A copy of a table in memory with huge pages.
class Copy {
 public:
  Copy(const float* rows, int64_t count)
      : bytes_(static_cast<size_t>(count) * sizeof(float)) {
    rows_ = static_cast<float*>(std::aligned_alloc(
        size_t{1} << 21, (bytes_ >> 21 << 21) + (size_t{1} << 21)));
    ::madvise(rows_, bytes_, MADV_HUGEPAGE);
    std::memcpy(rows_, rows, bytes_);
  }
  ~Copy() {
    std::free(rows_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  const float* rows() const {
    return rows_;
  }

 private:
  size_t bytes_;
  float* rows_;
};

// Writes the sum of the rows of each `bag` ids, or each row for bags of one id.
void sum_bags(
    const float* rows,
    int64_t dim,
    const std::vector<int64_t>& ids,
    int64_t bag,
    float* out) {
  constexpr size_t kAhead = 12;
  const auto bytes = static_cast<size_t>(dim) * sizeof(float);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) {
      const char* next =
          reinterpret_cast<const char*>(rows + ids[i + kAhead] * dim);
      for (size_t byte = 0; byte < bytes; byte += 64) {
        __builtin_prefetch(next + byte);
      }
    }
    const float* row = rows + ids[i] * dim;
    float* sum = out + static_cast<int64_t>(i) / bag * dim;
    if (static_cast<int64_t>(i) % bag == 0) {
      std::memcpy(sum, row, bytes);
      continue;
    }
    for (int64_t column = 0; column < dim; ++column) {
      sum[column] += row[column];
    }
  }
}

struct Side {
  std::string name;
  std::shared_ptr<const serving::Version> version;
};

// Prints the times of lookups of bags of `bag` ids.
void compare_lookups(
    const Options& options,
    const std::vector<Side>& sides,
    const float* rows,
    int64_t bag,
    int64_t threads) {
  std::vector<int64_t> splits;
  for (int64_t split = 0; bag > 1 && split <= options.ids; split += bag) {
    splits.push_back(split);
  }
  if (bag > 1 && splits.back() < options.ids) {
    splits.push_back(options.ids);
  }
  const int64_t bags = (options.ids + bag - 1) / bag;
  std::vector<std::vector<double>> times(sides.size() + 1);
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const size_t side : turns(round, sides.size() + 1)) {
      const double seconds = seconds_on(threads, [&](int64_t thread) {
        const Batches batches = random_batches(
            options, static_cast<uint64_t>(100 * round + thread));
        std::vector<float> out(static_cast<size_t>(bags * options.dim));
        for (const auto& batch : batches) {
          if (side == sides.size()) {
            sum_bags(rows, options.dim, batch, bag, out.data());
          } else {
            sides[side].version->lookup(
                0, {.ids = batch, .row_splits = splits}, out);
          }
        }
      });
      // The batches are made in the same time on all sides.
      const double making = seconds_on(threads, [&](int64_t thread) {
        random_batches(options, static_cast<uint64_t>(100 * round + thread));
      });
      times[side].push_back(
          1e9 * (seconds - making) /
          static_cast<double>(200 * options.ids * threads));
    }
  }
  const double reference = median(times.back());
  fmt::print("{:24} {:8} {:14.1f}\n", "loop", threads, reference);
  for (size_t i = 0; i < sides.size(); ++i) {
    fmt::print(
        "{:24} {:8} {:14.1f} {:14.2f}\n",
        sides[i].name,
        threads,
        median(times[i]),
        reference / median(times[i]));
  }
}

void measure_lookups(const Options& options) {
  const auto model = std::make_shared<Model>(options.rows, options.dim);
  std::vector<Side> sides;
  const auto open = [&](const std::string& name, const std::string& folder) {
    serving::Reader reader(folder, {.follow = false, .copy_to_memory = true});
    sides.push_back({name, reader.version()});
  };
  for (const auto& [name, format] :
       {std::pair{"float32", serving::RowFormat::kFloat32},
        std::pair{"int8", serving::RowFormat::kInt8},
        std::pair{"int4", serving::RowFormat::kInt4}}) {
    const std::string folder = options.directory + "/" + name;
    serving::Publisher publisher(
        model, folder, {.format = format, .full_share = 10.0});
    publisher.publish();
    open(name, folder);
    if (format != serving::RowFormat::kFloat32) {
      fs::remove_all(folder);
      continue;
    }
    for (const double share : {0.01, 0.2}) {
      model->train(at::randint(
          0,
          options.rows,
          {static_cast<int64_t>(
              -std::log1p(-share) * static_cast<double>(options.rows))},
          at::kLong));
      publisher.publish();
      open(fmt::format("float32, {:.0f} % overlaid", 100.0 * share), folder);
    }
    fs::remove_all(folder);
  }
  const Copy copy(
      model->embedding->embedding_tables()["rows"].const_data_ptr<float>(),
      options.rows * options.dim);
  fmt::print(
      "Lookups of {} random rows of {} numbers from {} million, {}.\n"
      "The base is in memory with huge pages. The loop copies or sums rows of float32.\n",
      options.ids,
      options.dim,
      static_cast<double>(options.rows) / 1e6,
      machine());
  for (const int64_t bag : {int64_t{1}, options.bag}) {
    fmt::print(
        "\n{:24} {:>8} {:>14} {:>14}\n",
        bag == 1 ? "rows" : fmt::format("sums of {} rows", bag),
        "threads",
        "ns per row",
        "loop / this");
    for (const int64_t threads : {1, 2}) {
      compare_lookups(options, sides, copy.rows(), bag, threads);
    }
  }
}

// What the process that serves has measured.
struct Served {
  std::vector<double> latencies;  // ms
  std::vector<double>
      delays;  // from the end of a step to the served version, ms
};

void send(int pipe, const std::vector<double>& values) {
  const auto count = static_cast<uint64_t>(values.size());
  (void)!::write(pipe, &count, sizeof(count));
  const char* data = reinterpret_cast<const char*>(values.data());
  for (size_t done = 0; done < count * sizeof(double);) {
    const ssize_t written =
        ::write(pipe, data + done, count * sizeof(double) - done);
    if (written <= 0) {
      return;
    }
    done += static_cast<size_t>(written);
  }
}

std::vector<double> receive(int pipe) {
  const auto read_all = [&](void* to, size_t size) {
    auto* bytes = static_cast<char*>(to);
    for (size_t done = 0; done < size;) {
      const ssize_t got = ::read(pipe, bytes + done, size - done);
      if (got <= 0) {
        return;
      }
      done += static_cast<size_t>(got);
    }
  };
  uint64_t count = 0;
  read_all(&count, sizeof(count));
  std::vector<double> values(count);
  read_all(values.data(), count * sizeof(double));
  return values;
}

// Answers requests at fixed times until a byte arrives, and then sends what it has
// measured. A late answer counts from the time of its request.
void serve(const Options& options, int commands, int results) {
  if (options.separate) {
    run_on(1);
  }
  std::optional<serving::Reader> reader;
  while (!reader) {
    try {
      reader.emplace(options.directory);
    } catch (const std::runtime_error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  ::prctl(PR_SET_TIMERSLACK, 1);
  serving::use_short_time_slices();
  std::mt19937_64 random(5);
  std::exponential_distribution<double> pause(options.rate);
  std::vector<int64_t> ids(100);
  std::vector<float> out(ids.size() * static_cast<size_t>(options.dim));
  for (;;) {
    char command = 0;
    if (::read(commands, &command, 1) != 1 || command == 'q') {
      return;
    }
    std::vector<double> latencies;
    std::vector<double> delays;
    int64_t known = reader->version()->number();
    double due = now();
    const double end = due + options.seconds;
    while (due < end) {
      due += pause(random);
      sleep_until(due);
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(
            random() % static_cast<uint64_t>(options.rows));
      }
      const auto version = reader->version();
      version->lookup(0, {.ids = ids}, out);
      const double answered = now();
      latencies.push_back(1e3 * (answered - due));
      if (version->number() != known) {
        known = version->number();
        delays.push_back(1e3 * (answered - version->metrics().at("step_end")));
      }
    }
    send(results, latencies);
    send(results, delays);
  }
}

void print_quantiles(const std::string& name, const std::vector<double>& ms) {
  if (ms.empty()) {
    return;
  }
  fmt::print(
      "{:44} {:8} {:9.3f} {:9.3f} {:9.3f} {:9.3f}\n",
      name,
      ms.size(),
      quantile(ms, 0.5),
      quantile(ms, 0.99),
      quantile(ms, 0.999),
      *std::max_element(ms.begin(), ms.end()));
}

void measure_freshness(const Options& options) {
  int commands[2];
  int results[2];
  TORCH_CHECK(::pipe(commands) == 0 && ::pipe(results) == 0, "no pipes");
  // No other thread exists yet.
  const pid_t server = ::fork();
  if (server == 0) {
    ::close(commands[1]);
    ::close(results[0]);
    serve(options, commands[0], results[1]);
    std::_Exit(0);
  }
  if (options.separate) {
    run_on(0);
    at::set_num_threads(1);
  }
  const auto model = std::make_shared<Model>(options.rows, options.dim);
  serving::Publisher publisher(
      model,
      options.directory,
      {.full_share = 10.0, .keep_seconds = 5.0, .background = true});
  publisher.publish({.metrics = {{"step_end", now()}}});
  publisher.wait();
  std::this_thread::sleep_for(
      std::chrono::seconds(8));  // the server opens the base
  const auto ids_per_step = std::max<int64_t>(
      1,
      static_cast<int64_t>(
          options.share * static_cast<double>(options.rows) / 50.0));
  const auto train = [&](bool publishes) {
    const char go = 'g';
    (void)!::write(commands[1], &go, 1);
    const double begin = now();
    double next_version = begin;
    std::vector<double> copies, bytes;
    int64_t steps = 0;
    for (double due = begin; due < begin + options.seconds;
         due += 0.02, ++steps) {
      while (now() < due) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      model->train(at::randint(0, options.rows, {ids_per_step}, at::kLong));
      if (publishes && now() >= next_version) {
        const double step_end = now();
        publisher.publish({.step = steps, .metrics = {{"step_end", step_end}}});
        copies.push_back(1e3 * publisher.report().copy_seconds);
        const auto report = publisher.report();
        if (report.rows > 0 && !report.is_base) {
          bytes.push_back(
              static_cast<double>(report.bytes) /
              static_cast<double>(report.rows * options.dim * 4));
        }
        next_version += options.every;
      }
    }
    const Served served{
        .latencies = receive(results[0]), .delays = receive(results[0])};
    const char* what = publishes ? "with versions" : "without versions";
    print_quantiles(
        fmt::format("request of 100 rows, {}", what), served.latencies);
    if (publishes) {
      print_quantiles("from the end of a step to a changed row", served.delays);
      print_quantiles("training stands still", copies);
      fmt::print(
          "bytes of a version / bytes of its rows in float32: {:.2f}\n",
          bytes.empty() ? 0.0 : median(bytes));
    }
    return served;
  };
  fmt::print(
      "\n{} million rows of {}, {} % of them change per second, a version every {} s,\n"
      "{} requests per second in another process (Poisson), {}. In ms:\n\n{:44} {:>8} {:>9} {:>9} {:>9} {:>9}\n",
      static_cast<double>(options.rows) / 1e6,
      options.dim,
      100.0 * options.share,
      options.every,
      options.rate,
      machine(),
      "",
      "count",
      "p50",
      "p99",
      "p99.9",
      "max");
  for (int64_t round = 0; round < 2; ++round) {
    const Served without = train(false);
    const Served with = train(true);
    fmt::print(
        "p99 with / without versions: {:.2f}\n",
        quantile(with.latencies, 0.99) / quantile(without.latencies, 0.99));
  }
  const char quit = 'q';
  (void)!::write(commands[1], &quit, 1);
  ::waitpid(server, nullptr, 0);
}

void measure(const Options& options) {
  fs::create_directories(options.directory);
  if (options.part != "lookups") {
    measure_freshness(options);  // first, because it forks
  }
  fs::remove_all(options.directory);
  if (options.part != "freshness") {
    measure_lookups(options);
  }
  fs::remove_all(options.directory);
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  return run_benchmark(
      argc,
      argv,
      "Times publishing and serving a model that is being trained.",
      measure);
}
