// SPDX-License-Identifier: Apache-2.0
// Times lookups of the same rows in a published version, in Redis, and in RocksDB. With
// --write, it writes the rows. compare_row_stores.py calls it.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/reader.h>
#include <tessera/tables/instruction_set.h>

#include "tests/benchmarks/torch_benchmark.h"

#include <hiredis/hiredis.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

namespace {

namespace serving = tessera::serving;

const std::vector<std::string>
    kSides{"float32", "int8", "int4", "redis", "rocksdb", "rocksdb_cuckoo"};

struct Options : BenchmarkOptions {
  std::string& folder =
      text("folder", "folder of the rows", "", CLI::ExistingDirectory);
  std::vector<std::string>& sides = option<std::vector<std::string>>(
      "--side",
      {"float32"},
      "the formats float32, int8 and int4 of Tessera, redis, rocksdb (its "
      "block cache), or rocksdb_cuckoo (its cuckoo table)",
      CLI::IsMember(kSides));
  bool& writes = flag("--write", "write the rows, and time nothing");
  std::string& socket = text("--socket", "the Unix socket of Redis");
  int64_t& rows = integer("--rows", 4'000'000, "rows of the table");
  int64_t& dim = integer("--dim", 64, "numbers per row", up_to(4096));
  int64_t& ids = integer("--ids", 4096, "ids of a request");
  int64_t& bag = integer("--bag", 20, "ids of a bag of a pooled request");
  std::vector<int64_t>& threads = option<std::vector<int64_t>>(
      "--threads",
      {1, 2},
      "threads, each of which looks up its share of every request",
      up_to(1024));
  int64_t& requests = integer("--requests", 200, "requests between two times");
  int64_t& ms = integer("--ms", 300, "least time of all requests, in ms");
  int64_t& seed = integer("--seed", 0, "of the ids", up_to(1'000'000, 0));

  Options() {
    get_option("folder")->required();
  }
};

// --- the rows and ids, as in compare_row_stores.py ---------------------------

uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

// A multiple of 2^-23 in [-1, 1), so that sums in double are exact.
float value_of(int64_t row, int64_t column, int64_t dim) {
  const uint32_t bits = mixed(static_cast<uint32_t>(row * dim + column));
  return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) *
      0x1p-23F;
}

void fill_row(int64_t row, std::span<float> out) {
  const auto dim = static_cast<int64_t>(out.size());
  for (int64_t column = 0; column < dim; ++column) {
    out[static_cast<size_t>(column)] = value_of(row, column, dim);
  }
}

void fill_ids(const Options& options, int64_t chunk, std::span<int64_t> ids) {
  const auto rows = static_cast<uint64_t>(options.rows);
  const auto first = static_cast<uint32_t>(
      (options.seed + 1) * 0x5BD1E995 +
      chunk * static_cast<int64_t>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t random = mixed(first + static_cast<uint32_t>(i));
    ids[i] = static_cast<int64_t>(random * rows >> 32);
  }
}

// --- the sides ---------------------------------------------------------------

using Lookup =
    std::function<void(const serving::FeatureBatch&, std::span<float>)>;

// A side opens its rows once. Each thread has its own Lookup.
struct Side {
  std::function<Lookup()> make_lookup;
  bool has_pooling = false;
  // The largest difference of a number.
  double tolerance = 0.0;
};

struct Model : torch::nn::Module {
  explicit Model(const Options& options) {
    const auto table = tessera::make_table(
        {.name = "rows",
         .vocabulary_size = options.rows,
         .dim = options.dim,
         .combiner = tessera::Combiner::kSum});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features =
                {{"row", tessera::FeatureConfig{.table = table}},
                 {"bag", tessera::FeatureConfig{.table = table}}},
            .optimizer = tessera::optim::SGD{}}));
    const at::Tensor rows = at::empty({options.rows, options.dim});
    auto* data = rows.mutable_data_ptr<float>();
    const auto dim = static_cast<size_t>(options.dim);
    at::parallel_for(0, options.rows, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        fill_row(row, {data + row * options.dim, dim});
      }
    });
    embedding->update_embedding_table("rows", rows);
  }
  tessera::TPUEmbedding embedding = nullptr;
};

void write_tessera(
    const Options& options,
    const std::vector<std::string>& formats) {
  const auto model = std::make_shared<Model>(options);
  for (const std::string& name : formats) {
    const auto format = name == "int8" ? serving::RowFormat::kInt8
        : name == "int4"               ? serving::RowFormat::kInt4
                                       : serving::RowFormat::kFloat32;
    serving::Publisher publisher(
        model, options.folder + "/" + name, {.format = format});
    publisher.publish();
  }
}

Side open_tessera(const Options& options, const std::string& format) {
  const serving::Reader reader(
      options.folder + "/" + format, {.follow = false, .copy_to_memory = true});
  const auto version = reader.version();
  const size_t row = version->feature("row");
  const size_t bag = version->feature("bag");
  // Half a step of numbers between -1 and 1.
  const double tolerance = format == "int8" ? 1.0 / 255
      : format == "int4"                    ? 1.0 / 15
                                            : 0.0;
  return {
      .make_lookup =
          [=] {
            return [=](const serving::FeatureBatch& batch,
                       std::span<float> out) {
              version->lookup(batch.row_splits.empty() ? row : bag, batch, out);
            };
          },
      .has_pooling = true,
      .tolerance = tolerance};
}

using Connection = std::unique_ptr<redisContext, decltype(&redisFree)>;

Connection connect(const Options& options) {
  Connection redis(redisConnectUnix(options.socket.c_str()), redisFree);
  if (redis == nullptr || redis->err != 0) {
    throw std::runtime_error(fmt::format(
        "--socket must be the Unix socket of a Redis server, but got '{}': {}.",
        options.socket,
        redis == nullptr ? "out of memory" : redis->errstr));
  }
  return redis;
}

using Reply = std::unique_ptr<void, decltype(&freeReplyObject)>;

Reply next_reply(redisContext& redis) {
  void* reply = nullptr;
  if (redisGetReply(&redis, &reply) != REDIS_OK) {
    throw std::runtime_error(
        fmt::format("Redis gives no answer: {}.", redis.errstr));
  }
  Reply owned(reply, freeReplyObject);
  const auto& answer = *static_cast<const redisReply*>(reply);
  if (answer.type == REDIS_REPLY_ERROR) {
    throw std::runtime_error(fmt::format("Redis refuses: {}.", answer.str));
  }
  return owned;
}

using Key = std::array<char, 4>;

// Big-endian, so that RocksDB, which sorts bytes, has the order of the ids.
Key key_of(int64_t id) {
  return {
      static_cast<char>(id >> 24),
      static_cast<char>(id >> 16),
      static_cast<char>(id >> 8),
      static_cast<char>(id)};
}

std::vector<const char*> addresses_of(const std::vector<Key>& keys) {
  std::vector<const char*> addresses;
  for (const Key& key : keys) {
    addresses.push_back(key.data());
  }
  return addresses;
}

void write_redis(const Options& options) {
  const Connection redis = connect(options);
  std::vector<float> row(static_cast<size_t>(options.dim));
  constexpr int64_t kPipelined = 1000;
  for (int64_t begin = 0; begin < options.rows; begin += kPipelined) {
    const int64_t end = std::min(begin + kPipelined, options.rows);
    for (int64_t id = begin; id < end; ++id) {
      fill_row(id, row);
      const Key key = key_of(id);
      std::array<const char*, 3> words{
          "SET", key.data(), reinterpret_cast<const char*>(row.data())};
      const std::array<size_t, 3> sizes{
          3, key.size(), row.size() * sizeof(float)};
      redisAppendCommandArgv(redis.get(), 3, words.data(), sizes.data());
    }
    for (int64_t id = begin; id < end; ++id) {
      next_reply(*redis);
    }
  }
}

// Pipelined MGETs of 128 keys, which are faster than one MGET of all keys.
Lookup redis_lookup(const Options& options) {
  constexpr size_t kPiece = 128;
  const std::shared_ptr<redisContext> redis = connect(options);
  const auto dim = static_cast<size_t>(options.dim);
  return [=](const serving::FeatureBatch& batch, std::span<float> out) {
    std::vector<Key> keys(kPiece);
    std::vector<const char*> words = addresses_of(keys);
    words.insert(words.begin(), "MGET");
    const std::vector<size_t> sizes(kPiece + 1, sizeof(Key));
    for (size_t begin = 0; begin < batch.ids.size(); begin += kPiece) {
      const size_t count = std::min(kPiece, batch.ids.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        keys[i] = key_of(batch.ids[begin + i]);
      }
      redisAppendCommandArgv(
          redis.get(), static_cast<int>(count + 1), words.data(), sizes.data());
    }
    for (size_t begin = 0; begin < batch.ids.size(); begin += kPiece) {
      const size_t count = std::min(kPiece, batch.ids.size() - begin);
      const Reply reply = next_reply(*redis);
      const auto& answer = *static_cast<const redisReply*>(reply.get());
      for (size_t i = 0; i < count; ++i) {
        const redisReply& row = *answer.element[i];
        if (row.len != dim * sizeof(float)) {
          throw std::runtime_error(fmt::format(
              "Redis must have {} bytes for the row {}, but got {}.",
              dim * sizeof(float),
              batch.ids[begin + i],
              row.len));
        }
        std::memcpy(out.data() + (begin + i) * dim, row.str, row.len);
      }
    }
  };
}

void check(const rocksdb::Status& status) {
  if (!status.ok()) {
    throw std::runtime_error("RocksDB: " + status.ToString() + ".");
  }
}

// `rocksdb` has all blocks in the cache. `rocksdb_cuckoo` is RocksDB's format for point
// lookups of files that fit into memory, which it maps.
rocksdb::Options rocksdb_options(const Options& options, bool is_cuckoo) {
  rocksdb::Options result;
  result.create_if_missing = true;
  result.compression = rocksdb::kNoCompression;
  result.write_buffer_size = size_t{256} << 20;
  result.target_file_size_base = uint64_t{16} << 30;
  result.max_open_files = -1;
  if (is_cuckoo) {
    result.allow_mmap_reads = true;
    rocksdb::CuckooTableOptions table;
    table.hash_table_ratio = 0.8;
    result.table_factory.reset(rocksdb::NewCuckooTableFactory(table));
    return result;
  }
  rocksdb::BlockBasedTableOptions table;
  const size_t bytes =
      static_cast<size_t>(options.rows * options.dim) * sizeof(float);
  table.block_size = 16384;
  table.block_cache = rocksdb::HyperClockCacheOptions(
                          2 * bytes + (size_t{64} << 20), table.block_size)
                          .MakeSharedCache();
  table.data_block_index_type =
      rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  result.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  result.optimize_filters_for_hits = true;  // all keys are there
  return result;
}

using Database = std::unique_ptr<rocksdb::DB>;

void write_rocksdb(const Options& options, const std::string& side) {
  rocksdb::DB* opened = nullptr;
  check(rocksdb::DB::Open(
      rocksdb_options(options, side == "rocksdb_cuckoo"),
      options.folder + "/" + side,
      &opened));
  const Database database(opened);
  rocksdb::WriteOptions write;
  write.disableWAL = true;
  std::vector<float> row(static_cast<size_t>(options.dim));
  for (int64_t begin = 0; begin < options.rows; begin += 1000) {
    rocksdb::WriteBatch batch;
    for (int64_t id = begin; id < std::min(begin + 1000, options.rows); ++id) {
      fill_row(id, row);
      const Key key = key_of(id);
      check(batch.Put(
          {key.data(), key.size()},
          {reinterpret_cast<const char*>(row.data()),
           row.size() * sizeof(float)}));
    }
    check(database->Write(write, &batch));
  }
  check(database->Flush({}));
  rocksdb::CompactRangeOptions compact;
  compact.bottommost_level_compaction =
      rocksdb::BottommostLevelCompaction::kForce;
  check(database->CompactRange(compact, nullptr, nullptr));
}

// MultiGet of sorted keys, which is faster than that of keys in the order of the request.
class RocksDBLookup {
 public:
  RocksDBLookup(std::shared_ptr<rocksdb::DB> database, int64_t dim)
      : database_(std::move(database)), dim_(static_cast<size_t>(dim)) {
    read_.verify_checksums = false;
  }

  void operator()(const serving::FeatureBatch& batch, std::span<float> out) {
    const size_t count = batch.ids.size();
    if (order_.size() != count) {
      order_.resize(count);
      keys_.resize(count);
      slices_.clear();
      for (const Key& key : keys_) {
        slices_.emplace_back(key.data(), key.size());
      }
      values_ = std::vector<rocksdb::PinnableSlice>(count);
      states_.resize(count);
    }
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return batch.ids[a] < batch.ids[b];
    });
    for (size_t i = 0; i < count; ++i) {
      keys_[i] = key_of(batch.ids[order_[i]]);
    }
    database_->MultiGet(
        read_,
        database_->DefaultColumnFamily(),
        count,
        slices_.data(),
        values_.data(),
        states_.data(),
        true);
    for (size_t i = 0; i < count; ++i) {
      check(states_[i]);
      std::memcpy(
          out.data() + order_[i] * dim_,
          values_[i].data(),
          dim_ * sizeof(float));
      values_[i].Reset();
    }
  }

 private:
  std::shared_ptr<rocksdb::DB> database_;
  size_t dim_;
  rocksdb::ReadOptions read_;
  std::vector<size_t> order_;
  std::vector<Key> keys_;
  std::vector<rocksdb::Slice> slices_;
  std::vector<rocksdb::PinnableSlice> values_;
  std::vector<rocksdb::Status> states_;
};

Side open_rocksdb(const Options& options, const std::string& side) {
  rocksdb::DB* opened = nullptr;
  check(rocksdb::DB::OpenForReadOnly(
      rocksdb_options(options, side == "rocksdb_cuckoo"),
      options.folder + "/" + side,
      &opened));
  const std::shared_ptr<rocksdb::DB> database(opened);
  const auto make_lookup = [=, dim = options.dim]() -> Lookup {
    const auto lookup = std::make_shared<RocksDBLookup>(database, dim);
    return [=](const serving::FeatureBatch& batch, std::span<float> out) {
      (*lookup)(batch, out);
    };
  };
  // Brings all rows into memory.
  std::vector<int64_t> ids;
  std::vector<float> out(static_cast<size_t>(4096 * options.dim));
  const Lookup lookup = make_lookup();
  for (int64_t begin = 0; begin < options.rows; begin += 4096) {
    ids.resize(
        static_cast<size_t>(std::min<int64_t>(4096, options.rows - begin)));
    std::iota(ids.begin(), ids.end(), begin);
    lookup({.ids = ids}, out);
  }
  return {.make_lookup = make_lookup};
}

Side open_side(const Options& options, const std::string& side) {
  if (side == "redis") {
    return {.make_lookup = [&] { return redis_lookup(options); }};
  }
  return side.starts_with("rocksdb") ? open_rocksdb(options, side)
                                     : open_tessera(options, side);
}

// --- the measurement ---------------------------------------------------------

// Requests of `examples` bags of `bag` ids, of which a thread looks up a share.
class Requests {
 public:
  Requests(
      const Options& options,
      const Side& side,
      int64_t threads,
      int64_t bag)
      : options_(options),
        examples_(options.ids / bag),
        bag_(bag),
        ids_(static_cast<size_t>(options.requests * examples_ * bag)) {
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t first = i * examples_ / threads;
      Share share{
          .first = first, .count = (i + 1) * examples_ / threads - first};
      share.lookup = side.make_lookup();
      share.out.resize(static_cast<size_t>(share.count * options.dim));
      if (bag > 1) {
        for (int64_t example = 0; example <= share.count; ++example) {
          share.row_splits.push_back(example * bag);
        }
      }
      shares_.push_back(std::move(share));
    }
  }

  // Makes new ids, looks them up, and returns the seconds of the lookups.
  double run(int64_t chunk) {
    fill_ids(options_, chunk, ids_);
    return seconds_on(
        static_cast<int64_t>(shares_.size()), [&](int64_t thread) {
          Share& share = shares_[static_cast<size_t>(thread)];
          for (int64_t i = 0; i < options_.requests; ++i) {
            look_up(share, i);
          }
        });
  }

  // Compares the first request of a chunk with the rows. Returns the sum of its numbers.
  double check(int64_t chunk, double tolerance) {
    fill_ids(options_, chunk, ids_);
    const double largest = static_cast<double>(bag_) * (tolerance + 1e-6);
    double sum = 0.0;
    for (Share& share : shares_) {
      look_up(share, 0);
      for (int64_t i = 0; i < share.count; ++i) {
        for (int64_t column = 0; column < options_.dim; ++column) {
          double expected = 0.0;
          for (int64_t k = 0; k < bag_; ++k) {
            const auto id = static_cast<size_t>((share.first + i) * bag_ + k);
            expected += value_of(ids_[id], column, options_.dim);
          }
          sum += expected;
          const double got =
              share.out[static_cast<size_t>(i * options_.dim + column)];
          if (!(std::abs(got - expected) <= largest)) {
            throw std::runtime_error(fmt::format(
                "The number {} of example {} must be {} +- {}, but got {}.",
                column,
                share.first + i,
                expected,
                largest,
                got));
          }
        }
      }
    }
    return sum;
  }

  double rows() const {
    return static_cast<double>(ids_.size());
  }

 private:
  struct Share {
    int64_t first = 0;
    int64_t count = 0;
    Lookup lookup = {};
    std::vector<int64_t> row_splits = {};
    std::vector<float> out = {};
  };

  void look_up(Share& share, int64_t request) const {
    const std::span<const int64_t> ids(ids_);
    share.lookup(
        {.ids = ids.subspan(
             static_cast<size_t>((request * examples_ + share.first) * bag_),
             static_cast<size_t>(share.count * bag_)),
         .row_splits = share.row_splits},
        share.out);
  }

  const Options& options_;
  int64_t examples_;
  int64_t bag_;
  std::vector<int64_t> ids_;
  std::vector<Share> shares_;
};

void measure(const Options& options, const std::string& name) {
  const Side side = open_side(options, name);
  for (const bool is_pooled : {false, true}) {
    if (is_pooled && !side.has_pooling) {
      continue;
    }
    for (const int64_t threads : options.threads) {
      Requests requests(options, side, threads, is_pooled ? options.bag : 1);
      const double sum = requests.check(0, side.tolerance);
      requests.run(0);  // not timed
      std::vector<double> times;
      double total = 0.0;
      for (int64_t i = 1; times.size() < 3 || 1e3 * total < options.ms; ++i) {
        times.push_back(requests.run(i));
        total += times.back();
      }
      fmt::print(
          R"({{"side": "{}", "op": "{}", "threads": {}, "ns_per_row": {:.3f}, )"
          R"("sum": {:.17g}, "isa": "{}"}})"
          "\n",
          name,
          is_pooled ? "pooled" : "unpooled",
          threads,
          1e9 * median(times) / requests.rows(),
          sum,
          tessera::instruction_set());
    }
  }
}

void write(const Options& options) {
  std::vector<std::string> formats;
  for (const std::string& side : options.sides) {
    if (side == "redis") {
      write_redis(options);
    } else if (side.starts_with("rocksdb")) {
      write_rocksdb(options, side);
    } else {
      formats.push_back(side);
    }
  }
  if (!formats.empty()) {
    write_tessera(options, formats);
  }
}

void run(const Options& options) {
  const int64_t least = options.bag *
      *std::max_element(options.threads.begin(), options.threads.end());
  if (options.ids < least) {
    throw std::invalid_argument(fmt::format(
        "--ids must be >= {}, so that each thread has a bag, but got {}.",
        least,
        options.ids));
  }
  if (options.writes) {
    write(options);
    return;
  }
  for (const std::string& side : options.sides) {
    measure(options, side);
  }
}

}  // namespace

TESSERA_BENCHMARK(
    "Times lookups of the same rows in Tessera, Redis and RocksDB.",
    run)
