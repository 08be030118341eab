// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_reader.h"

#include "src/parallel.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "[load_checkpoint]";

// A data file that is being read. Closes itself.
class InputFile {
 public:
  explicit InputFile(fs::path path)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    check(descriptor_ >= 0, "can't be opened", std::strerror(errno));
  }
  ~InputFile() {
    ::close(descriptor_);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const {
    struct stat status {};
    check(
        ::fstat(descriptor_, &status) == 0,
        "can't be read",
        std::strerror(errno));
    return S_ISREG(status.st_mode) ? status.st_size : -1;
  }

  void read(int64_t begin, int64_t bytes, char* to) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_, to, bytes, begin);
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
  void check(bool is_right, const char* problem, const char* reason) const {
    TORCH_CHECK_VALUE(
        is_right,
        kWhere,
        " '",
        path_.string(),
        "' ",
        problem,
        ": ",
        reason,
        ". Load another checkpoint, by LoadOptions::checkpoint.");
  }

  fs::path path_;
  int descriptor_;
};

// Some chunks of a file that are compared one after the other.
struct Stretch {
  fs::path path;
  const ManifestFile* file = nullptr;
  int64_t first_chunk = 0;
  int64_t end_chunk = 0;
};

// Long enough for the system to read ahead.
constexpr int64_t kChunksPerStretch = 32;

void append_stretches(
    const fs::path& path,
    const ManifestFile& file,
    std::vector<Stretch>& stretches) {
  const int64_t size = InputFile(path).size();
  TORCH_CHECK_VALUE(
      size == file.bytes,
      kWhere,
      " '",
      path.string(),
      "' must have ",
      file.bytes,
      " bytes, but got ",
      size,
      ": it is damaged. Load another checkpoint, by LoadOptions::checkpoint.");
  const auto chunks = static_cast<int64_t>(file.xxh3.size());
  for (int64_t chunk = 0; chunk < chunks; chunk += kChunksPerStretch) {
    stretches.push_back(
        {.path = path,
         .file = &file,
         .first_chunk = chunk,
         .end_chunk = std::min(chunks, chunk + kChunksPerStretch)});
  }
}

void verify(const Stretch& stretch) {
  const InputFile input(stretch.path);
  std::string bytes;
  for (int64_t i = stretch.first_chunk; i < stretch.end_chunk; ++i) {
    const int64_t begin = i * kChunkBytes;
    bytes.resize(std::min(kChunkBytes, stretch.file->bytes - begin));
    input.read(begin, static_cast<int64_t>(bytes.size()), bytes.data());
    TORCH_CHECK_VALUE(
        checksum_of(bytes) == stretch.file->xxh3[i],
        kWhere,
        " '",
        stretch.path.string(),
        "' bytes [",
        begin,
        ", ",
        begin + static_cast<int64_t>(bytes.size()),
        ") do not agree with their checksum: the file is damaged. Load another "
        "checkpoint, by LoadOptions::checkpoint.");
  }
}

void verify(const std::vector<Stretch>& stretches) {
  int64_t bytes = 0;
  for (const Stretch& stretch : stretches) {
    bytes += (stretch.end_chunk - stretch.first_chunk - 1) * kChunkBytes + 1;
  }
  run_tasks(static_cast<int64_t>(stretches.size()), bytes, [&](int64_t i) {
    verify(stretches[i]);
  });
}

// Rows [begin, end) of what `tensor` has in files, numbered as its parts are.
void read_parts(
    const fs::path& folder,
    const ManifestTensor& tensor,
    int64_t begin,
    int64_t end,
    char* to) {
  const int64_t row_bytes = tensor.row_bytes();
  for (const ManifestPart& part : tensor.parts) {
    const int64_t first = std::max(begin, part.begin);
    const int64_t last = std::min(end, part.end);
    if (first < last) {
      InputFile(folder / part.file.name)
          .read(
              (first - part.begin) * row_bytes,
              (last - first) * row_bytes,
              to + (first - begin) * row_bytes);
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

// Whether an increment on `below` may be `above`.
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

// In stretches of whole rows, several at a time.
void copy_rows(const CheckpointReader& reader, const LoadPlan::Copy& copy) {
  at::Tensor to = copy.to;
  if (to.numel() == 0) {
    return;
  }
  constexpr int64_t kStretchBytes = 4 * kChunkBytes;
  const int64_t rows = to.size(0);
  const auto row_bytes = static_cast<int64_t>(to.nbytes()) / rows;
  const int64_t step = std::max<int64_t>(1, kStretchBytes / row_bytes);
  auto* data = static_cast<char*>(to.mutable_data_ptr());
  run_tasks((rows + step - 1) / step, rows * row_bytes, [&](int64_t task) {
    const int64_t begin = task * step;
    reader.read_rows(
        copy.table,
        copy.key,
        begin,
        std::min(rows, begin + step),
        data + begin * row_bytes);
  });
  if (!to.is_inference()) {
    to.unsafeGetTensorImpl()->bump_version();  // a write, for who counts them
  }
}

}  // namespace

std::vector<std::string> list_checkpoints(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end;
       !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (checkpoint_number(name)) {
      names.push_back(std::move(name));
    }
  }
  TORCH_CHECK(
      !error || error == std::errc::no_such_file_or_directory,
      "[list_checkpoints] can't read '",
      directory,
      "': ",
      error.message(),
      ".");
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return *checkpoint_number(a) < *checkpoint_number(b);
  });
  return names;
}

CheckpointLink read_link(
    const fs::path& directory,
    const std::string& checkpoint,
    const std::string& where) {
  const fs::path path = directory / checkpoint / kManifestFile;
  const InputFile file(path);
  std::string text(std::max<int64_t>(0, file.size()), '\0');
  file.read(0, static_cast<int64_t>(text.size()), text.data());
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
  // Each has a smaller number of increments below it, so this ends.
  while (chain.front().manifest.parent) {
    const CheckpointLink& child = chain.front();
    CheckpointLink link =
        read_link(directory, child.manifest.parent->name, where);
    TORCH_CHECK_VALUE(
        link.xxh3 == child.manifest.parent->xxh3 &&
            link.manifest.increments == child.manifest.increments - 1 &&
            has_same_tables(link.manifest, child.manifest),
        where,
        " '",
        (directory / link.name).string(),
        "' is not the one that the increment '",
        child.name,
        "' was written on. Load another checkpoint.");
    chain.insert(chain.begin(), std::move(link));
  }
  return chain;
}

CheckpointReader::CheckpointReader(
    const std::string& directory,
    const std::string& checkpoint)
    : directory_(directory) {
  const std::vector<std::string> names = list_checkpoints(directory);
  TORCH_CHECK_VALUE(
      !names.empty(),
      kWhere,
      " there is no checkpoint in '",
      directory,
      "'. Name the directory that was given to save_checkpoint().");
  std::string known;
  for (const std::string& name : names) {
    known += (known.empty() ? "" : ", ") + name;
  }
  TORCH_CHECK_VALUE(
      checkpoint.empty() ||
          std::find(names.begin(), names.end(), checkpoint) != names.end(),
      kWhere,
      " LoadOptions::checkpoint must be one of ",
      known,
      ", but got '",
      checkpoint,
      "'.");
  chain_ = read_chain(
      directory_, checkpoint.empty() ? names.back() : checkpoint, kWhere);
  touched_.resize(chain_.size());
  const Manifest& newest = chain_.back().manifest;
  saved_.iterations = newest.iterations;
  for (const ManifestTable& table : newest.tables) {
    SavedTable entry{.name = table.name, .optimizer = table.optimizer};
    for (const ManifestTensor& tensor : table.tensors) {
      entry.tensors.push_back(
          {.key = tensor.name,
           .dtype = dtype_from_string(tensor.dtype),
           .shape = tensor.shape});
    }
    saved_.tables.push_back(std::move(entry));
  }
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

void CheckpointReader::verify(const std::vector<size_t>& tables) {
  std::vector<Stretch> stretches;
  for (const size_t table : tables) {
    for (const size_t link : links_of(table)) {
      const fs::path folder = folder_of(link);
      const ManifestTable& entry = table_of(link, table);
      if (entry.touched) {
        const ManifestFile& file = entry.touched->file;
        append_stretches(folder / file.name, file, stretches);
      }
      for (const ManifestTensor& tensor : entry.tensors) {
        for (const ManifestPart& part : tensor.parts) {
          append_stretches(folder / part.file.name, part.file, stretches);
        }
      }
    }
  }
  tessera::verify(stretches);
  for (const size_t table : tables) {
    for (const size_t link : links_of(table)) {
      read_touched(link, table);
    }
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
  InputFile(path).read(
      0, entry.touched->file.bytes, reinterpret_cast<char*>(rows.data()));
  const bool is_ascending =
      std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) ==
      rows.end();
  TORCH_CHECK_VALUE(
      is_ascending && (rows.empty() || rows.back() < entry.tensors[0].shape[0]),
      kWhere,
      " '",
      path.string(),
      "' must hold different rows of the table, ascending. Load another "
      "checkpoint.");
}

void CheckpointReader::read_rows(
    size_t table,
    const std::string& key,
    int64_t begin,
    int64_t end,
    char* to) const {
  for (const size_t link : links_of(table)) {
    const ManifestTable& entry = table_of(link, table);
    const ManifestTensor& tensor = find_tensor(entry, key);
    if (!entry.touched) {
      read_parts(folder_of(link), tensor, begin, end, to);
      continue;
    }
    const std::vector<uint32_t>& rows = touched_[link][table];
    const auto first = std::lower_bound(rows.begin(), rows.end(), begin);
    const auto last = std::lower_bound(first, rows.end(), end);
    const int64_t row_bytes = tensor.row_bytes();
    std::string values((last - first) * row_bytes, '\0');
    read_parts(
        folder_of(link),
        tensor,
        first - rows.begin(),
        last - rows.begin(),
        values.data());
    for (auto row = first; row != last; ++row) {
      std::memcpy(
          to + (*row - begin) * row_bytes,
          values.data() + (row - first) * row_bytes,
          row_bytes);
    }
  }
}

std::string CheckpointReader::read_extra() const {
  const CheckpointLink& newest = chain_.back();
  const std::optional<ManifestFile>& extra = newest.manifest.extra;
  TORCH_CHECK_VALUE(
      extra.has_value(),
      kWhere,
      " LoadOptions::extra is set, but '",
      newest.name,
      "' was saved without CheckpointOptions::extra.");
  const fs::path path = directory_ / newest.name / extra->name;
  std::vector<Stretch> stretches;
  append_stretches(path, *extra, stretches);
  tessera::verify(stretches);
  std::string bytes(extra->bytes, '\0');
  InputFile(path).read(0, extra->bytes, bytes.data());
  return bytes;
}

void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  CheckpointReader reader(directory, options.checkpoint);
  const LoadPlan plan = plan_load(state, reader.saved(), options, kWhere);
  std::set<size_t> tables;
  for (const LoadPlan::Copy& copy : plan.copies) {
    tables.insert(copy.table);
  }
  reader.verify({tables.begin(), tables.end()});
  torch::serialize::InputArchive extra;
  if (options.extra) {
    std::istringstream stream(reader.read_extra());
    extra.load_from(stream);
  }
  try {
    for (const LoadPlan::Copy& copy : plan.copies) {
      copy_rows(reader, copy);
    }
  } catch (const c10::Error& error) {
    TORCH_CHECK(
        false,
        kWhere,
        " the files were whole a moment ago, but now: ",
        error.what_without_backtrace(),
        " The tables hold rows of before and after: load again. Keep more "
        "checkpoints (CheckpointOptions::keep_last) where another process "
        "removes old ones.");
  }
  plan.finish(state);
  if (options.extra) {
    options.extra(extra);
  }
}

}  // namespace tessera
