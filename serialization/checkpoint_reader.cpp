// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_reader.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/file_descriptor.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

namespace tessera {

namespace {

namespace fs = std::filesystem;

// A file of a checkpoint that is open for reading. Errors begin with `where`, which must
// outlive the file.
class InputFile {
 public:
  InputFile(fs::path path, const std::string& where)
      : path_(std::move(path)),
        where_(where),
        descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    check(descriptor_.is_open(), "can't be opened", std::strerror(errno));
  }

  int64_t size() const {
    struct stat status {};
    const bool is_read = ::fstat(descriptor_.number(), &status) == 0;
    check(is_read, "can't be read", std::strerror(errno));
    check(S_ISREG(status.st_mode), "can't be read", "it is not a regular file");
    return status.st_size;
  }

  // Checks the size before it allocates memory, because a sparse file may have any size.
  std::string read_all(int64_t max_bytes) const {
    const int64_t bytes = size();
    check(
        bytes <= max_bytes,
        "is too large",
        fmt::format("expected at most {} bytes, but got {}", max_bytes, bytes));
    std::string text;
    try {
      text.resize(bytes);
    } catch (const std::bad_alloc&) {
      check(
          false,
          "is too large",
          fmt::format("its {} bytes need more memory than there is", bytes));
    }
    read(0, bytes, text.data());
    return text;
  }

  void read(int64_t begin, int64_t bytes, char* to) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_.number(), to, bytes, begin);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      check(got >= 0, "can't be read", std::strerror(errno));
      check(got > 0, "is too short", "the file has ended");
      begin += got;
      to += got;
      bytes -= got;
    }
  }

 private:
  void check(bool is_valid, const char* problem, std::string_view reason)
      const {
    TESSERA_CHECK_VALUE(
        is_valid,
        "{} '{}' {}: {}. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
        where_,
        path_.string(),
        problem,
        reason);
  }

  fs::path path_;
  const std::string& where_;
  FileDescriptor descriptor_;
};

// Some chunks of a file that are compared one after the other.
struct ChunkRange {
  fs::path path;
  const ManifestFile* file = nullptr;
  int64_t first_chunk = 0;
  int64_t end_chunk = 0;
};

// Long enough for the system to read ahead.
constexpr int64_t kChunksPerRange = 32;

void append_ranges(
    const fs::path& path,
    const ManifestFile& file,
    const std::string& where,
    std::vector<ChunkRange>& ranges) {
  const int64_t size = InputFile(path, where).size();
  TESSERA_CHECK_VALUE(
      size == file.bytes,
      "{} '{}' must have {} bytes, but has {}. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      path.string(),
      file.bytes,
      size);
  const auto chunks = static_cast<int64_t>(file.xxh3.size());
  for (int64_t chunk = 0; chunk < chunks; chunk += kChunksPerRange) {
    ranges.push_back(
        {.path = path,
         .file = &file,
         .first_chunk = chunk,
         .end_chunk = std::min(chunks, chunk + kChunksPerRange)});
  }
}

void verify(const ChunkRange& range, const std::string& where) {
  const InputFile input(range.path, where);
  std::string bytes;
  for (int64_t i = range.first_chunk; i < range.end_chunk; ++i) {
    const int64_t begin = i * kChunkBytes;
    bytes.resize(std::min(kChunkBytes, range.file->bytes - begin));
    input.read(begin, static_cast<int64_t>(bytes.size()), bytes.data());
    TESSERA_CHECK_VALUE(
        checksum_of(bytes) == range.file->xxh3[i],
        "{} '{}': the bytes [{}, {}) do not match their checksum. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
        where,
        range.path.string(),
        begin,
        begin + static_cast<int64_t>(bytes.size()));
  }
}

void verify(const std::vector<ChunkRange>& ranges, const std::string& where) {
  int64_t bytes = 0;
  for (const ChunkRange& range : ranges) {
    bytes += (range.end_chunk - range.first_chunk - 1) * kChunkBytes + 1;
  }
  run_tasks(static_cast<int64_t>(ranges.size()), bytes, [&](int64_t i) {
    verify(ranges[i], where);
  });
}

// Reads single entries of a file in ascending order. It keeps the bytes of one chunk.
class EntryReader {
 public:
  EntryReader(InputFile file, int64_t entries, int64_t entry_bytes)
      : file_(std::move(file)), entries_(entries), entry_bytes_(entry_bytes) {}

  void read(int64_t entry, char* to) {
    if (entry >= end_) {
      begin_ = entry;
      end_ = std::min(
          entries_, begin_ + std::max<int64_t>(1, kChunkBytes / entry_bytes_));
      window_.resize((end_ - begin_) * entry_bytes_);
      file_.read(
          begin_ * entry_bytes_,
          static_cast<int64_t>(window_.size()),
          window_.data());
    }
    std::memcpy(
        to, window_.data() + (entry - begin_) * entry_bytes_, entry_bytes_);
  }

 private:
  InputFile file_;
  int64_t entries_;
  int64_t entry_bytes_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  std::string window_;
};

// The wanted rows that a part holds: those with the indices first, first + stride, ...
// below `end` in the list of wanted rows.
struct CommonRows {
  int64_t first = 0;
  int64_t end = 0;
  int64_t stride = 1;
};

CommonRows find_common(
    const ManifestPart& part,
    kernels::RowNumbers rows,
    int64_t count) {
  const LocalRows requested{.numbers = rows, .count = count};
  CommonRows common{
      .first = requested.count_before(part.begin),
      .end = requested.count_before(part.end),
      .stride = part.step / std::gcd(part.step, rows.step)};
  // Remainders repeat after `stride` rows. If none of these is in the part, no row is.
  const int64_t last = std::min(common.end, common.first + common.stride);
  while (common.first < last &&
         (rows[common.first] - part.begin) % part.step != 0) {
    ++common.first;
  }
  return common.first < last ? common : CommonRows{};
}

// Reads those of `count` entries that the files of `tensor` hold. `rows` numbers them as
// the parts do.
void read_parts(
    const fs::path& folder,
    const ManifestTensor& tensor,
    kernels::RowNumbers rows,
    int64_t count,
    const std::string& where,
    char* to) {
  const int64_t row_bytes = tensor.row_bytes();
  for (const ManifestPart& part : tensor.parts) {
    const CommonRows common = find_common(part, rows, count);
    if (common.first >= common.end) {
      continue;
    }
    const fs::path path = folder / part.file.name;
    const auto entry_of = [&](int64_t i) {
      return (rows[i] - part.begin) / part.step;
    };
    if (rows.step == part.step) {
      InputFile(path, where)
          .read(
              entry_of(common.first) * row_bytes,
              (common.end - common.first) * row_bytes,
              to + common.first * row_bytes);
      continue;
    }
    EntryReader reader(InputFile(path, where), part.count(), row_bytes);
    for (int64_t i = common.first; i < common.end; i += common.stride) {
      reader.read(entry_of(i), to + i * row_bytes);
    }
  }
}

const ManifestTensor& find_tensor(
    const ManifestTable& table,
    const std::string& key) {
  const auto found = std::find_if(
      table.tensors.begin(),
      table.tensors.end(),
      [&](const ManifestTensor& tensor) { return tensor.name == key; });
  TORCH_INTERNAL_ASSERT(found != table.tensors.end());
  return *found;
}

// Whether both checkpoints have the same tables, as an increment and its parent must.
bool has_same_tables(const Manifest& below, const Manifest& above) {
  const std::vector<ManifestTable>& a = below.tables;
  const std::vector<ManifestTable>& b = above.tables;
  const auto same_tensor = [](const ManifestTensor& x,
                              const ManifestTensor& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape;
  };
  const auto same_table = [&](const ManifestTable& x, const ManifestTable& y) {
    return x.name == y.name &&
        std::equal(
               x.tensors.begin(),
               x.tensors.end(),
               y.tensors.begin(),
               y.tensors.end(),
               same_tensor);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_table);
}

// Copies ranges of whole rows, several at the same time.
void copy_rows(const CheckpointReader& reader, const LoadPlan::Copy& copy) {
  at::Tensor to = copy.to;
  if (to.numel() == 0) {
    return;
  }
  // How many bytes of the table a task reads, including rows that are not wanted.
  constexpr int64_t kTaskBytes = 4 * kChunkBytes;
  const int64_t rows = to.size(0);
  const auto row_bytes = static_cast<int64_t>(to.nbytes()) / rows;
  const int64_t skipped =
      reader.has_step(copy.table, copy.rows.step) ? 1 : copy.rows.step;
  const int64_t step = std::max<int64_t>(1, kTaskBytes / row_bytes / skipped);
  auto* data = static_cast<char*>(to.mutable_data_ptr());
  run_tasks((rows + step - 1) / step, rows * row_bytes, [&](int64_t task) {
    const int64_t begin = task * step;
    reader.read_rows(
        copy.table,
        copy.key,
        {.first = copy.rows[begin], .step = copy.rows.step},
        std::min(rows, begin + step) - begin,
        data + begin * row_bytes);
  });
  if (!to.is_inference()) {
    to.unsafeGetTensorImpl()->bump_version();  // Autograd must see the write.
  }
}

// Whether the part may hold rows that `copy` needs. A part of an increment always may,
// because its entries are not numbered by row.
bool may_contain(
    const ManifestTable& table,
    const ManifestPart& part,
    const LoadPlan::Copy& copy) {
  const CommonRows common = find_common(part, copy.rows, copy.to.size(0));
  return table.touched || common.first < common.end;
}

}  // namespace

CheckpointLink read_link(
    const fs::path& directory,
    const std::string& checkpoint,
    const std::string& where) {
  const fs::path path = directory / checkpoint / kManifestFile;
  const std::string text =
      InputFile(path, where).read_all(static_cast<int64_t>(kMaxManifestBytes));
  return {
      .name = checkpoint,
      .manifest = manifest_from_text(
          text, fmt::format("{} '{}'", where, path.string())),
      .xxh3 = checksum_in(text)};
}

std::vector<CheckpointLink> read_chain(
    const fs::path& directory,
    const std::string& checkpoint,
    const std::string& where) {
  std::vector<CheckpointLink> chain{read_link(directory, checkpoint, where)};
  // This ends because `increments` becomes smaller by one with each parent.
  while (chain.front().manifest.parent) {
    const CheckpointLink& child = chain.front();
    CheckpointLink link =
        read_link(directory, child.manifest.parent->name, where);
    TESSERA_CHECK_VALUE(
        link.xxh3 == child.manifest.parent->xxh3 &&
            link.manifest.increments == child.manifest.increments - 1 &&
            has_same_tables(link.manifest, child.manifest),
        "{} '{}' is not the checkpoint that the increment '{}' builds on. Choose another checkpoint with LoadOptions::checkpoint, or move the increment out of its directory.",
        where,
        (directory / link.name).string(),
        shorten(child.name));
    chain.insert(chain.begin(), std::move(link));
  }
  return chain;
}

std::string choose_checkpoint(
    const std::string& directory,
    const std::string& checkpoint,
    const std::string& where) {
  const std::vector<std::string> names = list_checkpoints(directory, where);
  TESSERA_CHECK_VALUE(
      !names.empty(),
      "{} there is no checkpoint in '{}'. Pass the directory that was given to save_checkpoint().",
      where,
      directory);
  TESSERA_CHECK_VALUE(
      checkpoint.empty() ||
          std::find(names.begin(), names.end(), checkpoint) != names.end(),
      "{} LoadOptions::checkpoint must be one of {}, but got '{}'.",
      where,
      join_names(names),
      shorten(checkpoint));
  return checkpoint.empty() ? names.back() : checkpoint;
}

CheckpointReader::CheckpointReader(
    const std::string& directory,
    const std::string& checkpoint,
    std::string where)
    : where_(std::move(where)),
      directory_(directory),
      chain_(read_chain(directory, checkpoint, where_)) {
  touched_.resize(chain_.size());
  const Manifest& newest = chain_.back().manifest;
  saved_.iterations = newest.iterations;
  saved_.seed = newest.seed;
  for (const ManifestTable& table : newest.tables) {
    SavedTable entry{.name = table.name, .optimizer = table.optimizer};
    for (const ManifestTensor& tensor : table.tensors) {
      entry.tensors.push_back(
          {.key = tensor.name,
           .dtype = dtype_from_string(tensor.dtype),
           .shape = tensor.shape});
    }
    entry.accumulation_steps = table.accumulated ? table.accumulated->steps : 0;
    saved_.tables.push_back(std::move(entry));
  }
}

bool CheckpointReader::has_step(size_t table, int64_t step) const {
  const std::vector<size_t> links = links_of(table);
  const std::vector<ManifestPart>& parts =
      table_of(links[0], table).tensors[0].parts;
  return links.size() == 1 && !parts.empty() && parts[0].step == step;
}

std::vector<size_t> CheckpointReader::links_of(size_t table) const {
  std::vector<size_t> links;
  for (size_t link = 0; link < chain_.size(); ++link) {
    if (!table_of(link, table).touched) {
      links.clear();
    }
    links.push_back(link);
  }
  return links;
}

void CheckpointReader::verify(const EmbeddingState& state, LoadPlan& plan) {
  std::set<std::pair<size_t, size_t>> increments;
  std::vector<ChunkRange> ranges;
  for (const LoadPlan::Copy& copy : plan.copies) {
    for (const size_t link : links_of(copy.table)) {
      const fs::path folder = folder_of(link);
      const ManifestTable& entry = table_of(link, copy.table);
      if (entry.touched && increments.emplace(link, copy.table).second) {
        const ManifestFile& file = entry.touched->file;
        append_ranges(folder / file.name, file, where_, ranges);
      }
      for (const ManifestPart& part : find_tensor(entry, copy.key).parts) {
        if (may_contain(entry, part, copy)) {
          append_ranges(folder / part.file.name, part.file, where_, ranges);
        }
      }
    }
  }
  tessera::verify(ranges, where_);
  for (const auto& [link, table] : increments) {
    read_touched(link, table);
  }
  for (LoadPlan::Accumulated& entry : plan.accumulated) {
    const TableState& table = state.tables[entry.to];
    entry.gradients = read_accumulated(entry.table, table.rows);
    check_accumulated(entry.gradients, table, where_);
  }
}

void CheckpointReader::read_touched(size_t link, size_t table) {
  const ManifestTable& entry = table_of(link, table);
  if (!entry.touched) {
    return;
  }
  touched_[link].resize(chain_[link].manifest.tables.size());
  std::vector<uint32_t>& rows = touched_[link][table];
  rows.resize(entry.touched->count);
  const fs::path path = folder_of(link) / entry.touched->file.name;
  InputFile(path, where_)
      .read(0, entry.touched->file.bytes, reinterpret_cast<char*>(rows.data()));
  const bool is_ascending =
      std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) ==
      rows.end();
  TESSERA_CHECK_VALUE(
      is_ascending && (rows.empty() || rows.back() < entry.tensors[0].shape[0]),
      "{} '{}' must list rows of the table in ascending order, each of them once. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where_,
      path.string());
}

void CheckpointReader::read_rows(
    size_t table,
    const std::string& key,
    kernels::RowNumbers rows,
    int64_t count,
    char* to) const {
  const LocalRows requested{.numbers = rows, .count = count};
  for (const size_t link : links_of(table)) {
    const ManifestTable& entry = table_of(link, table);
    const ManifestTensor& tensor = find_tensor(entry, key);
    if (!entry.touched) {
      read_parts(folder_of(link), tensor, rows, count, where_, to);
      continue;
    }
    const std::vector<uint32_t>& touched = touched_[link][table];
    const auto first =
        std::lower_bound(touched.begin(), touched.end(), rows.first);
    const auto last =
        std::lower_bound(first, touched.end(), rows[count - 1] + 1);
    const int64_t row_bytes = tensor.row_bytes();
    std::string values((last - first) * row_bytes, '\0');
    read_parts(
        folder_of(link),
        tensor,
        {.first = first - touched.begin()},
        last - first,
        where_,
        values.data());
    for (auto row = first; row != last; ++row) {
      const int64_t i = requested.count_before(*row);
      if (rows[i] == *row) {
        std::memcpy(
            to + i * row_bytes,
            values.data() + (row - first) * row_bytes,
            row_bytes);
      }
    }
  }
}

std::string CheckpointReader::read_extra() const {
  const CheckpointLink& newest = chain_.back();
  const std::optional<ManifestFile>& extra = newest.manifest.extra;
  TESSERA_CHECK_VALUE(
      extra.has_value(),
      "{} LoadOptions::extra is set, but '{}' was saved without CheckpointOptions::extra. Leave LoadOptions::extra unset, or load another checkpoint.",
      where_,
      shorten(newest.name));
  return read_whole(*extra);
}

std::string CheckpointReader::read_whole(const ManifestFile& file) const {
  const fs::path path = folder_of(chain_.size() - 1) / file.name;
  std::vector<ChunkRange> ranges;
  append_ranges(path, file, where_, ranges);
  tessera::verify(ranges, where_);
  return InputFile(path, where_).read_all(file.bytes);
}

AccumulatedGradients CheckpointReader::read_accumulated(
    size_t table,
    const LocalRows& rows) const {
  const ManifestTable& entry = table_of(chain_.size() - 1, table);
  const int64_t dim = entry.tensors[0].shape.back();
  // Each rank has written one part, and the rows of the parts may interleave.
  std::vector<at::Tensor> parts_rows{at::empty({0}, at::kLong)};
  std::vector<at::Tensor> parts_sums{at::empty({0, dim}, at::kFloat)};
  for (const ManifestGradients& part : entry.accumulated->parts) {
    const std::string rows_bytes = read_whole(part.rows);
    const std::string sums_bytes = read_whole(part.sums);
    if (part.count == 0) {
      continue;
    }
    std::vector<uint32_t> numbers(part.count);
    std::memcpy(numbers.data(), rows_bytes.data(), rows_bytes.size());
    AccumulatedGradients gradients{
        .rows = at::empty({part.count}, at::kLong),
        .sums = at::empty({part.count, dim}, at::kFloat)};
    std::memcpy(
        gradients.sums.mutable_data_ptr(),
        sums_bytes.data(),
        sums_bytes.size());
    std::copy(
        numbers.begin(),
        numbers.end(),
        gradients.rows.mutable_data_ptr<int64_t>());
    gradients = local_part(gradients, rows);
    parts_rows.push_back(std::move(gradients.rows));
    parts_sums.push_back(std::move(gradients.sums));
  }
  const auto [sorted, order] = at::cat(parts_rows).sort();
  return {.rows = sorted, .sums = at::cat(parts_sums).index_select(0, order)};
}

void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options,
    const std::string& where) {
  check_has_no_keys(state, where, "Load an archive with torch::load().");
  const at::NoGradGuard no_grad;
  RankGroup& ranks = *state.ranks;
  const RendezvousPoint point(Rendezvous::kLoadCheckpoint, state.layer);
  ranks.barrier_and_compare(
      point,
      nullptr,
      random_key(
          0,
          fmt::format(
              "{} {} {} {} {}",
              fmt::join(options.tables, ","),
              options.slots,
              options.grown,
              options.checkpoint,
              options.extra != nullptr)),
      "loads with other LoadOptions. Use the same on all ranks.");
  // Only one rank chooses, because a newer checkpoint may appear meanwhile.
  const std::string checkpoint = ranks.broadcast(point, [&] {
    return choose_checkpoint(directory, options.checkpoint, where);
  });
  std::optional<CheckpointReader> reader;
  LoadPlan plan;
  torch::serialize::InputArchive extra;
  ranks.run_on_all_ranks(point, [&] {
    reader.emplace(directory, checkpoint, where);
    plan = plan_load(state, reader->saved(), options, where);
    reader->verify(state, plan);
    if (options.extra) {
      std::istringstream stream(reader->read_extra());
      extra.load_from(stream);
    }
  });
  ranks.barrier_and_compare(
      point,
      nullptr,
      random_key(0, reader->xxh3()),
      "loads another checkpoint. All ranks must see the same directory.");
  ranks.run_on_all_ranks(point, [&] {
    try {
      for (const LoadPlan::Copy& copy : plan.copies) {
        copy_rows(*reader, copy);
      }
    } catch (const c10::Error& error) {
      TESSERA_CHECK(
          false,
          "{} the files changed while they were loaded: {} Some rows of the tables are loaded, and the others are not, so load again. If another process removes old checkpoints, increase its CheckpointOptions::keep_last.",
          where,
          error.what_without_backtrace());
    }
  });
  plan.finish(state);
  ranks.run_on_all_ranks(point, [&] {
    if (options.extra) {
      options.extra(extra);
    }
  });
}

}  // namespace tessera
