// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>
#include <tessera/search/faiss_index.h>

#include "packages/search/src/index_file.h"
#include "src/common/check.h"
#include "src/common/checksum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <faiss/AutoTune.h>
#include <faiss/Index.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/io.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

namespace tessera {

namespace {

constexpr const char* kFaissFormat = "tessera faiss index";

// Calls faiss, and converts its errors to c10::ValueError.
template <class Call>
auto call_faiss(const std::string& where, Call call) {
  try {
    return call();
  } catch (const faiss::FaissException& error) {
    TESSERA_CHECK_VALUE(false, "{} faiss refuses: {}", where, error.msg);
  } catch (const std::exception& error) {  // from std::stoi, or bad_alloc
    TESSERA_CHECK_VALUE(false, "{} faiss failed: {}", where, error.what());
  }
}

std::string checksum_of_tensor(const at::Tensor& bytes) {
  return checksum_of(std::string_view(
      reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
      static_cast<size_t>(bytes.numel())));
}

// Reads from the tensor without a copy of it. faiss reports a short read as damage.
struct BytesReader : faiss::IOReader {
  explicit BytesReader(const at::Tensor& bytes)
      : begin(bytes.const_data_ptr<uint8_t>()),
        left(static_cast<size_t>(bytes.numel())) {}

  size_t operator()(void* to, size_t size, size_t count) override {
    const size_t items = size == 0 ? 0 : std::min(count, left / size);
    if (items > 0) {
      std::memcpy(to, begin, items * size);
    }
    begin += items * size;
    left -= items * size;
    return items;
  }

  const uint8_t* begin;
  size_t left;
};

class FaissIndex : public TopKIndex {
 public:
  FaissIndex(
      std::unique_ptr<faiss::Index> index,
      double max_norm,
      const at::Tensor& ids)
      : TopKIndex(index->d, max_norm, ids), index_(std::move(index)) {}
  FaissIndex(
      std::unique_ptr<faiss::Index> index,
      const detail::IndexVectors& vectors,
      const at::Tensor& ids)
      : TopKIndex(vectors, ids), index_(std::move(index)) {}

  void save(const std::string& path) const override {
    faiss::VectorIOWriter writer;
    call_faiss(c10::str("[TopKIndex::save '", path, "']"), [&] {
      faiss::write_index(index_.get(), &writer);
    });
    const at::Tensor bytes =
        at::from_blob(writer.data.data(), {std::ssize(writer.data)}, at::kByte);
    save_safetensors(
        {.tensors =
             {{"index", bytes},
              {"ids", ids()},
              {"longest", at::tensor({max_norm()}, at::kDouble)}},
         .metadata =
             {{"format", kFaissFormat}, {"xxh3", checksum_of_tensor(bytes)}}},
        path);
  }

 private:
  TopK nearest(const at::Tensor& queries, int64_t k) const override {
    TopK found{
        .scores = at::empty({queries.size(0), k}, at::kFloat),
        .ids = at::empty({queries.size(0), k}, at::kLong)};
    call_faiss("[TopKIndex]", [&] {
      index_->search(
          queries.size(0),
          queries.const_data_ptr<float>(),
          k,
          found.scores.mutable_data_ptr<float>(),
          found.ids.mutable_data_ptr<int64_t>());
    });
    return found;
  }

  std::unique_ptr<faiss::Index> index_;
};

// Checks the numbers in `factory`, because faiss divides by some of them, and others
// decide how much memory it allocates.
void check_numbers(
    const std::string& factory,
    const at::Tensor& vectors,
    const std::string& where) {
  // The largest number that makes sense: a cluster for each vector, a part for each column,
  // or 2^16 links.
  const int64_t max_value =
      std::max({vectors.size(0), vectors.size(1), int64_t{1} << 16});
  constexpr const char* kDigits = "0123456789";
  size_t begin = factory.find_first_of(kDigits);
  while (begin != std::string::npos) {
    const size_t end =
        std::min(factory.find_first_not_of(kDigits, begin), factory.size());
    int64_t number = 0;
    const auto [stop, error] =
        std::from_chars(factory.data() + begin, factory.data() + end, number);
    TESSERA_CHECK_VALUE(
        error == std::errc() && number >= 1 && number <= max_value,
        "{} a number in factory must be in [1, {}] for these vectors, but got {}. Use fewer clusters or parts.",
        where,
        max_value,
        factory.substr(begin, end - begin));
    begin = factory.find_first_of(kDigits, end);
  }
}

void set_parameter(
    faiss::Index& index,
    const char* name,
    std::optional<int64_t> value,
    const std::string& where) {
  if (!value) {
    return;
  }
  TESSERA_CHECK_VALUE(
      *value >= 1 && *value <= std::numeric_limits<int32_t>::max(),
      "{} {} must be in [1, 2^31 - 1], but got {}.",
      where,
      name,
      *value);
  call_faiss(where, [&] {
    faiss::ParameterSpace().set_index_parameter(
        &index, name, static_cast<double>(*value));
  });
}

std::unique_ptr<TopKIndex> read_index(const NamedTensors& file) {
  const at::Tensor bytes = file["index"];
  const at::Tensor max_norm = file["longest"];
  const at::Tensor ids = file["ids"];
  const std::string checksum = metadata_of(file, "xxh3");
  TESSERA_CHECK_VALUE(
      bytes.scalar_type() == at::kByte && bytes.dim() == 1 &&
          checksum_of_tensor(bytes) == checksum,
      "the index must have the checksum {}, but has another one.",
      checksum);
  TESSERA_CHECK_VALUE(
      max_norm.scalar_type() == at::kDouble && max_norm.numel() == 1 &&
          max_norm.item<double>() >= 0.0 &&
          std::isfinite(max_norm.item<double>()),
      "'longest' must be a finite number >= 0.");
  BytesReader reader(bytes);
  auto index = call_faiss("[TopKIndex]", [&] {
    return std::unique_ptr<faiss::Index>(faiss::read_index(&reader));
  });
  TESSERA_CHECK_VALUE(
      index->metric_type == faiss::METRIC_INNER_PRODUCT && index->d > 0 &&
          ids.dim() == 1 && index->ntotal == ids.size(0),
      "the index must compare by inner product and have one vector per id.");
  return std::make_unique<FaissIndex>(
      std::move(index), max_norm.item<double>(), ids);
}

}  // namespace

bool has_faiss() {
  return true;
}

std::unique_ptr<TopKIndex> make_faiss_index(
    const at::Tensor& vectors,
    const at::Tensor& ids,
    const FaissIndexOptions& options) {
  const auto where = fmt::format("[make_faiss_index '{}']", options.factory);
  const detail::IndexVectors checked = detail::index_vectors(vectors, where);
  const at::Tensor& matrix = checked.rows;
  TESSERA_CHECK_VALUE(
      matrix.size(1) <= std::numeric_limits<int32_t>::max(),
      "{} dim must be below 2^31, but got {}. Project the vectors to fewer columns.",
      where,
      matrix.size(1));
  check_numbers(options.factory, matrix, where);
  auto index = call_faiss(where, [&] {
    return std::unique_ptr<faiss::Index>(faiss::index_factory(
        static_cast<int>(matrix.size(1)),
        options.factory.c_str(),
        faiss::METRIC_INNER_PRODUCT));
  });
  set_parameter(*index, "nprobe", options.nprobe, where);
  set_parameter(*index, "efSearch", options.ef_search, where);
  faiss::Index& built = *index;
  auto result = std::make_unique<FaissIndex>(std::move(index), checked, ids);
  call_faiss(where, [&] {
    const float* data = matrix.const_data_ptr<float>();
    if (!built.is_trained) {
      built.train(matrix.size(0), data);
    }
    built.add(matrix.size(0), data);
  });
  return result;
}

std::unique_ptr<TopKIndex> load_faiss_index(const std::string& path) {
  return load_index_file("load_faiss_index", path, kFaissFormat, read_index);
}

}  // namespace tessera
