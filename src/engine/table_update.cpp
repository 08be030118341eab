// SPDX-License-Identifier: Apache-2.0
#include "src/engine/table_update.h"

#include "src/common/active_kernels.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/kernels/prefetch.h"
#include "src/kernels/row_sort.h"
#include "src/tables/key_index.h"
#include "src/tables/table_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <ranges>
#include <span>

namespace tessera {

namespace {

constexpr int64_t kMinIdsPerChunk = 2048;
constexpr int64_t kMaxIdsPerChunk = int64_t{1} << 20;
constexpr int64_t kMinIdsPerBin = 256;
// 16,384 contributions and their copy take 256 KiB of the second-level cache. With eight
// times as many bins, the sort was in the first-level cache, which saved little. But where
// low bits select the bins, the rows of a bin were eight times as far apart, and a step of
// Adagrad on a million rows of 64 floats took 1.5 times as long.
constexpr int64_t kMaxIdsPerBin = 16384;
// The ids per bin for sums, whose order must not depend on the number of threads. The bins
// are so small that there are enough of them for many threads.
constexpr int64_t kIdsPerFixedBin = 2048;
constexpr int kMaxBinBits = 8;
using BinCounters = std::array<uint32_t, size_t{1} << kMaxBinBits>;
// With fewer ids and less memory traffic, one thread updates all tables before others
// would have been woken for each phase. A step of 26 tables took 1.1 to 2 times as long
// on two threads.
constexpr int64_t kFewIds = 2048;
constexpr int64_t kFewBytes = int64_t{512} * 1024;
// Tables with up to this many ids per thread are updated together, so that their
// contributions, which take 8 bytes per id, stay in the second-level cache.
constexpr int64_t kIdsPerThread = int64_t{64} * 1024;
// The gradients of narrow rows, up to this width, are summed before the rows are updated.
// The bits of the result are the same, except for the sign of a gradient of zero. For wider
// rows, the copies cost more: SGD took twice as long on rows of 64 floats.
constexpr int64_t kMaxNarrowDim = 32;
constexpr int64_t kMaxSummedRows = 512;
// If a bin has at most this many possible rows, their gradients are summed without a sort.
// The sort and these sums give the same bits. The places of all rows, of 16 bits each, fit
// into the first-level cache.
constexpr int64_t kMaxPlaces = 16384;
static_assert(kMaxPlaces <= 65535, "a place has 16 bits");
// Fewer contributions are sorted in less time than it takes to load the places.
constexpr int64_t kMinIdsForPlaces = 512;
// The memory traffic of one task in a sweep over all rows, about 100 us of work.
constexpr int64_t kSweepTaskBytes = int64_t{1} << 20;

int bin_bits_for(int64_t ids, int64_t ids_per_bin) {
  const int64_t bins = ids / ids_per_bin;
  return std::min(
      kMaxBinBits,
      static_cast<int>(std::bit_width(static_cast<uint64_t>(bins))));
}

// Rows that share a cache line differ in this many of their low bits.
int row_bits_of_line(const at::Tensor& rows) {
  const int64_t row_bytes = rows.size(1) * rows.element_size();
  return static_cast<int>(std::bit_width(
      static_cast<uint64_t>((kernels::kLineBytes - 1) / row_bytes)));
}

// There is one source per bag, or one per id if ids have weights.
int64_t sources_of(const IdBags& bags) {
  return bags.weights.empty() ? bags.bags : bags.nnz();
}

// Whether each id is a bag without a weight and a scale.
bool has_one_id_per_bag(const TableUpdate::Term& term) {
  const IdBags& bags = *term.bags;
  return bags.offsets.empty() && bags.weights.empty() && bags.scales.empty() &&
      term.positions == nullptr;
}

// Records the uses of each row of the contributions, where equal rows are adjacent.
void record_uses(
    const RowRecord& record,
    const kernels::Contribution* contributions,
    int64_t count) {
  constexpr int64_t kAhead = 32;
  KeyIndex& index = *record.index;
  int64_t begin = 0;  // of the uses of one row
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      index.prefetch_use(contributions[i + kAhead].row);
    }
    const uint32_t row = contributions[i].row;
    if (i + 1 == count || contributions[i + 1].row != row) {
      index.record_use(
          row, static_cast<uint32_t>(i + 1 - begin), record.update);
      begin = i + 1;
    }
  }
}

int64_t ids_of(const TableUpdate& update) {
  int64_t ids = 0;
  for (const TableUpdate::Term& term : update.terms) {
    ids += term.bags->nnz();
  }
  return ids;
}

// The bytes of memory traffic, counted as if all values were float32, so 16-bit tables
// have smaller tasks.
int64_t traffic_of(const TableUpdate& update) {
  const auto tensors = static_cast<int64_t>(update.table->slots.size()) + 1;
  const int64_t rows =
      update.rows.sweep ? update.table->rows.count : ids_of(update);
  return rows * update.table->config->dim * (1 + 2 * tensors) *
      static_cast<int64_t>(sizeof(float));
}

// Divides the rows [0, limit) into ranges of 2^shift rows. Returns true if a sample of the
// ids has more than twice as many in one range as in an average range.
bool is_crowded(const TableUpdate& update, int64_t limit, int shift) {
  constexpr int64_t kSamplesPerRange = 16;
  const int64_t ranges = ((limit - 1) >> shift) + 1;
  const int64_t stride =
      std::max<int64_t>(ids_of(update) / (kSamplesPerRange * ranges), 1);
  BinCounters counts = {};
  int64_t samples = 0;
  for (const TableUpdate::Term& term : update.terms) {
    const uint32_t* ids = term.ids();
    const int64_t last = term.bags->nnz() - 1;
    for (int64_t begin = 0; begin <= last; begin += stride) {
      // A fixed stride could hit the same position of all bags.
      const auto place = static_cast<int64_t>(mix_bits(begin) % stride);
      const int64_t i = std::min(begin + place, last);
      if (ids[i] != kNoRow) {
        ++counts[uint64_t{ids[i]} >> shift];
        ++samples;
      }
    }
  }
  return *std::max_element(counts.begin(), counts.begin() + ranges) * ranges >
      2 * samples;
}

bool has_few_ids(const std::vector<TableUpdate>& updates) {
  int64_t ids = 0;
  int64_t bytes = 0;
  for (const TableUpdate& update : updates) {
    ids += ids_of(update);
    bytes += traffic_of(update);
  }
  return ids < kFewIds && bytes < kFewBytes;
}

// Returns true if there are few contributions, and all are to different rows. This check
// takes less time than a sort.
bool has_few_distinct_rows(
    const kernels::Contribution* contributions,
    int64_t count) {
  constexpr int64_t kMaxCount = 32;
  if (count > kMaxCount) {
    return false;
  }
  for (int64_t i = 1; i < count; ++i) {
    uint32_t equal = 0;
    for (int64_t j = 0; j < i; ++j) {
      equal |= contributions[j].row == contributions[i].row ? 1U : 0U;
    }
    if (equal != 0) {
      return false;
    }
  }
  return true;
}

// Prefetches what an update of few ids reads and writes.
void prefetch_rows(const TableUpdate& update) {
  const TableState& table = *update.table;
  const auto prefetch = [&](const at::Tensor& rows) {
    const void* data = rows.const_data_ptr();
    const auto row_bytes = static_cast<int64_t>(rows.element_size()) *
        (rows.dim() == 1 ? 1 : rows.size(1));
    for (const TableUpdate::Term& term : update.terms) {
      const uint32_t* ids = term.ids();
      for (int64_t i = 0; i < term.bags->nnz(); ++i) {
        if (ids[i] != kNoRow) {
          kernels::prefetch_row(data, row_bytes, ids[i]);
        }
      }
    }
  };
  prefetch(table.parameters);
  for (const Slot& slot : table.slots) {
    prefetch(slot.values);
  }
}

}  // namespace

void TableUpdater::update(const std::vector<TableUpdate>& updates) {
  if (has_few_ids(updates)) {
    update_few_ids(updates);
    return;
  }
  const int64_t max_ids = kIdsPerThread * thread_count();
  for (size_t begin = 0; begin < updates.size();) {
    size_t end = begin + 1;
    int64_t ids = ids_of(updates[begin]);
    while (end < updates.size() && ids + ids_of(updates[end]) <= max_ids) {
      ids += ids_of(updates[end++]);
    }
    update_group(Updates(updates).slice(begin, end - begin));
    begin = end;
  }
}

void TableUpdater::update_group(Updates updates) {
  const std::vector<Task> tasks = distribute(updates, BinSizes::kByThreads);
  run_tasks(static_cast<int64_t>(tasks.size()), bytes_, [&](int64_t i) {
    const auto [table, bin] = tasks[i];
    update_bin(updates[table], workspaces_[table], bin);
  });
}

// Few ids make one bin per table, so only the ids that are left out have to be counted.
// All tables use the same memory, which stays in the first-level cache.
void TableUpdater::update_few_ids(const std::vector<TableUpdate>& updates) {
  if (workspaces_.empty()) {
    workspaces_.resize(1);
  }
  for (size_t i = 0; i < updates.size(); ++i) {
    if (i == 0) {
      prefetch_rows(updates[0]);
    }
    if (i + 1 < updates.size()) {
      prefetch_rows(updates[i + 1]);
    }
    chunks_.clear();
    counters_.clear();
    choose_bins(
        updates[i], BinSizes::kByThreads, kMaxIdsPerBin, workspaces_[0]);
    add_chunks(updates[i], /*table=*/0, kMaxIdsPerChunk);
    int64_t begin = 0;
    for (const Chunk& chunk : chunks_) {
      count_bins(updates[i], chunk);
      begin += std::exchange(
          counters_[chunk.first_counter], static_cast<uint32_t>(begin));
      scatter(updates[i], chunk);
    }
    workspaces_[0].bin_begin = {0, begin};
    update_bin(updates[i], workspaces_[0], /*bin=*/0);
  }
}

std::vector<RowGradients> TableUpdater::sum(
    const std::vector<TableUpdate>& updates) {
  // The rows are in the order of their bins. This order, and with it a norm of the
  // gradients, must not depend on the number of threads.
  const std::vector<Task> tasks = distribute(updates, BinSizes::kFixed);
  // First the number of rows of each task, then the number of rows before it in its table.
  std::vector<int64_t> first_row(tasks.size());
  run_tasks(static_cast<int64_t>(tasks.size()), bytes_, [&](int64_t i) {
    const auto [table, bin] = tasks[i];
    Workspace& workspace = workspaces_[table];
    const kernels::Contribution* sorted = sort_bin(workspace, bin);
    const int64_t count = workspace.count(bin);
    kernels::Contribution* contributions =
        workspace.contributions.data() + workspace.bin_begin[bin];
    if (sorted != contributions) {
      std::copy_n(sorted, count, contributions);
    }
    int64_t rows = 0;
    for (int64_t j = 0; j < count; ++j) {
      rows +=
          j == 0 || contributions[j].row != contributions[j - 1].row ? 1 : 0;
    }
    first_row[i] = rows;
  });
  std::vector<int64_t> rows_of_table(updates.size(), 0);
  for (size_t i = 0; i < tasks.size(); ++i) {
    int64_t& rows = rows_of_table[tasks[i].first];
    const int64_t count = first_row[i];
    first_row[i] = rows;
    rows += count;
  }
  std::vector<RowGradients> gradients(updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    gradients[i].rows.resize(rows_of_table[i]);
    gradients[i].sums.resize(rows_of_table[i] * updates[i].table->config->dim);
  }
  run_tasks(static_cast<int64_t>(tasks.size()), bytes_, [&](int64_t i) {
    const auto [table, bin] = tasks[i];
    const Workspace& workspace = workspaces_[table];
    const int64_t dim = updates[table].table->config->dim;
    active_kernels().sum_rows(
        {.dim = dim,
         .contributions =
             workspace.contributions.data() + workspace.bin_begin[bin],
         .count = workspace.count(bin),
         .sources = workspace.sources.data(),
         .rows = gradients[table].rows.data() + first_row[i],
         .sums = gradients[table].sums.data() + first_row[i] * dim});
  });
  return gradients;
}

std::vector<TableUpdater::Task> TableUpdater::distribute(
    Updates updates,
    BinSizes sizes) {
  plan(updates, sizes);
  const auto chunks = static_cast<int64_t>(chunks_.size());
  run_tasks(chunks, bytes_, [&](int64_t i) {
    count_bins(updates[chunks_[i].table], chunks_[i]);
  });
  place_bins(updates.size());
  run_tasks(chunks, bytes_, [&](int64_t i) {
    scatter(updates[chunks_[i].table], chunks_[i]);
  });
  std::vector<Task> tasks;
  tasks.reserve(updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    for (int64_t bin = 0; bin < workspaces_[i].bins(); ++bin) {
      if (workspaces_[i].count(bin) > 0 || updates[i].rows.sweep) {
        tasks.emplace_back(i, bin);
      }
    }
  }
  return tasks;
}

void TableUpdater::plan(Updates updates, BinSizes sizes) {
  int64_t ids = 0;
  bytes_ = 0;
  for (const TableUpdate& update : updates) {
    ids += ids_of(update);
    bytes_ += traffic_of(update);
  }
  const int64_t ids_per_bin = sizes == BinSizes::kFixed
      ? kIdsPerFixedBin
      : task_size(ids, bytes_, kMinIdsPerBin, kMaxIdsPerBin);
  const int64_t ids_per_chunk =
      task_size(ids, bytes_, kMinIdsPerChunk, kMaxIdsPerChunk);
  if (workspaces_.size() < updates.size()) {
    workspaces_.resize(updates.size());
  }
  chunks_.clear();
  counters_.clear();
  for (size_t i = 0; i < updates.size(); ++i) {
    choose_bins(updates[i], sizes, ids_per_bin, workspaces_[i]);
    add_chunks(updates[i], i, ids_per_chunk);
  }
}

void TableUpdater::choose_bins(
    const TableUpdate& update,
    BinSizes sizes,
    int64_t ids_per_bin,
    Workspace& workspace) {
  const int64_t limit =
      std::max<int64_t>(update.id_limit.value_or(update.table->rows.count), 1);
  const int row_bits = std::bit_width(static_cast<uint64_t>(limit - 1));
  const int line_bits = row_bits_of_line(update.table->parameters);
  workspace.row_bits = row_bits;
  if (update.rows.sweep) {
    workspace.bin_bits = std::min(
        {row_bits,
         kMaxBinBits,
         static_cast<int>(std::bit_width(
             static_cast<uint64_t>(traffic_of(update) / kSweepTaskBytes)))});
    workspace.bin_shift = row_bits - workspace.bin_bits;
    return;
  }
  workspace.bin_bits = bin_bits_for(ids_of(update), ids_per_bin);
  workspace.bin_shift = 0;
  if (workspace.bin_bits == 0) {
    return;
  }
  // The ranges of the bins cover 2^row_bits rows. If an update can have at most three
  // quarters of these rows, the other ranges are empty, so the number of ranges is
  // doubled.
  const bool has_empty_end = limit <= (int64_t{3} << row_bits) / 4;
  const int bits = workspace.bin_bits + (has_empty_end ? 1 : 0);
  const int shift = row_bits - bits;
  if (sizes == BinSizes::kByThreads && bits <= kMaxBinBits &&
      shift >= line_bits && !is_crowded(update, limit, shift)) {
    workspace.bin_bits = bits;
    workspace.bin_shift = shift;
    return;
  }
  workspace.bin_shift =
      std::min(line_bits, std::max(row_bits - workspace.bin_bits, 0));
}

void TableUpdater::add_chunks(
    const TableUpdate& update,
    size_t table,
    int64_t ids_per_chunk) {
  Workspace& workspace = workspaces_[table];
  int64_t contributions = 0;
  int64_t sources = 0;
  for (size_t term = 0; term < update.terms.size(); ++term) {
    const IdBags& bags = *update.terms[term].bags;
    for (int64_t id = 0; id < bags.nnz(); id += ids_per_chunk) {
      chunks_.push_back(
          {.table = table,
           .term = term,
           .begin_id = id,
           .end_id = std::min(bags.nnz(), id + ids_per_chunk),
           .first_source = sources,
           .first_counter = static_cast<int64_t>(counters_.size())});
      counters_.resize(counters_.size() + workspace.bins());
    }
    contributions += bags.nnz();
    sources += sources_of(bags);
  }
  workspace.contributions.resize(contributions);
  workspace.sources.resize(sources);
}

void TableUpdater::count_bins(const TableUpdate& update, const Chunk& chunk) {
  const Workspace& workspace = workspaces_[chunk.table];
  uint32_t* counters = counters_.data() + chunk.first_counter;
  const TableUpdate::Term& term = update.terms[chunk.term];
  const uint32_t* ids = term.ids();
  if (workspace.bin_bits == 0) {
    const int64_t left_out = term.rows == nullptr
        ? 0
        : std::count(ids + chunk.begin_id, ids + chunk.end_id, kNoRow);
    *counters = static_cast<uint32_t>(chunk.end_id - chunk.begin_id - left_out);
    return;
  }
  // The thread counts on its own stack, because the counters of two chunks may share a
  // cache line.
  BinCounters counts;
  std::fill_n(counts.begin(), workspace.bins(), 0);
  const Workspace::BinOf bin_of = workspace.bin_of();
  for (int64_t i = chunk.begin_id; i < chunk.end_id; ++i) {
    // Without Term::rows, no id is kNoRow.
    if (term.rows == nullptr || ids[i] != kNoRow) {
      ++counts[bin_of(ids[i])];
    }
  }
  std::copy_n(counts.begin(), workspace.bins(), counters);
}

// Turns the chunks' counts into positions. Inside each bin, the chunks stay in order,
// which keeps the sort stable. Only here and in is_crowded(), one thread works for all. It
// reads one counter per chunk and bin, an estimated 1 to 2 % of an update on 64 threads.
void TableUpdater::place_bins(size_t tables) {
  for (size_t i = 0; i < tables; ++i) {
    workspaces_[i].bin_begin.assign(workspaces_[i].bins() + 1, 0);
  }
  for (const Chunk& chunk : chunks_) {
    Workspace& workspace = workspaces_[chunk.table];
    const int64_t bins = workspace.bins();
    const uint32_t* counts = counters_.data() + chunk.first_counter;
    for (int64_t bin = 0; bin < bins; ++bin) {
      workspace.bin_begin[bin + 1] += counts[bin];
    }
  }
  for (size_t i = 0; i < tables; ++i) {
    std::vector<int64_t>& begin = workspaces_[i].bin_begin;
    for (size_t bin = 1; bin < begin.size(); ++bin) {
      begin[bin] += begin[bin - 1];
    }
  }
  std::vector<int64_t> next;
  size_t table = tables;
  for (const Chunk& chunk : chunks_) {
    if (chunk.table != table) {
      table = chunk.table;
      next = workspaces_[table].bin_begin;
    }
    const int64_t bins = workspaces_[table].bins();
    uint32_t* counters = counters_.data() + chunk.first_counter;
    for (int64_t bin = 0; bin < bins; ++bin) {
      const uint32_t count = counters[bin];
      counters[bin] = static_cast<uint32_t>(next[bin]);
      next[bin] += count;
    }
  }
}

// Writes the chunk's sources, and its contributions into their bins.
void TableUpdater::scatter(const TableUpdate& update, const Chunk& chunk) {
  const TableUpdate::Term& term = update.terms[chunk.term];
  const IdBags& bags = *term.bags;
  Workspace& workspace = workspaces_[chunk.table];
  kernels::GradientSource* sources =
      workspace.sources.data() + chunk.first_source;
  kernels::Contribution* contributions = workspace.contributions.data();
  const auto first_source = static_cast<uint32_t>(chunk.first_source);
  BinCounters next;
  std::copy_n(
      counters_.begin() + chunk.first_counter, workspace.bins(), next.begin());
  const Workspace::BinOf bin_of = workspace.bin_of();
  const uint32_t* ids = term.ids();
  const float* weights = bags.weights.empty() ? nullptr : bags.weights.data();
  int64_t bag = chunk.begin_id;
  if (has_one_id_per_bag(term)) {  // the usual case, without a loop over bags
    const bool may_leave_out = term.rows != nullptr;
    for (int64_t i = chunk.begin_id; i < chunk.end_id; ++i) {
      sources[i] = {term.gradient + i * term.stride, term.factor};
      if (may_leave_out && ids[i] == kNoRow) {
        continue;
      }
      contributions[next[bin_of(ids[i])]++] = {
          ids[i], first_source + static_cast<uint32_t>(i)};
    }
    return;
  }
  if (!bags.offsets.empty()) {
    // The last bag that begins at or before the chunk's first id. It is not empty.
    bag = std::upper_bound(
              bags.offsets.begin(), bags.offsets.end(), chunk.begin_id) -
        bags.offsets.begin() - 1;
  }
  for (int64_t i = chunk.begin_id; i < chunk.end_id; ++bag) {
    const int64_t end = std::min(bags.end(bag), chunk.end_id);
    const float scale =
        term.factor * (bags.scales.empty() ? 1.0F : bags.scales[bag]);
    const int64_t position =
        term.positions == nullptr ? bag : int64_t{term.positions[bag]};
    const float* gradient = term.gradient + position * term.stride;
    if (weights == nullptr) {
      // If two chunks share a bag, only the one with its first id writes the source.
      if (bags.begin(bag) >= chunk.begin_id) {
        sources[bag] = {gradient, scale};
      }
    }
    for (; i < end; ++i) {
      const uint32_t row = ids[i];
      int64_t source = bag;
      if (weights != nullptr) {
        source = i;
        sources[i] = {gradient, scale * weights[i]};
      }
      if (row == kNoRow) {
        continue;
      }
      contributions[next[bin_of(row)]++] = {
          row, first_source + static_cast<uint32_t>(source)};
    }
  }
}

const kernels::Contribution* TableUpdater::group_bin(
    const TableUpdate& update,
    Workspace& workspace,
    int64_t bin) {
  const kernels::Contribution* contributions =
      workspace.contributions.data() + workspace.bin_begin[bin];
  const bool are_grouped = workspace.bin_bits == 0 && !update.rows.sweep &&
      has_few_distinct_rows(contributions, workspace.count(bin));
  return are_grouped ? contributions : sort_bin(workspace, bin);
}

// Returns the sorted contributions of the bin. They may be in memory that the next
// call of the same thread overwrites.
kernels::Contribution* TableUpdater::sort_bin(
    Workspace& workspace,
    int64_t bin) {
  // Each thread keeps its own, because all threads would wait for one lock if each task
  // took step memory.
  thread_local Buffer<kernels::Contribution> scratch;
  scratch.resize(workspace.count(bin));
  // All rows of a bin have the bits that select it in common, so the sort skips these
  // bits.
  const int first = workspace.bin_shift;
  const kernels::RowBits bits_of_bin{first, first + workspace.bin_bits};
  return kernels::sort_by_row(
      workspace.contributions.data() + workspace.bin_begin[bin],
      scratch.data(),
      workspace.count(bin),
      std::max(workspace.row_bits, bits_of_bin.end),
      bits_of_bin);
}

void TableUpdater::update_bin(
    const TableUpdate& update,
    Workspace& workspace,
    int64_t bin) {
  const bool sweep = update.rows.sweep;
  if (workspace.count(bin) == 0 && !sweep) {
    return;
  }
  TableState& table = *update.table;
  const int64_t dim = table.config->dim;
  const int64_t vocab = table.rows.count;
  const int shift = workspace.bin_shift;
  const int64_t end_row = std::min(vocab, (bin + 1) << shift);
  const bool sums_first =
      dim <= kMaxNarrowDim && update.rows.accumulate && !sweep;
  const int64_t possible_rows = int64_t{1}
      << std::max(workspace.row_bits - workspace.bin_bits, shift);
  // record_uses() needs the ids of a row side by side.
  const bool has_places = sums_first && update.record.index == nullptr &&
      possible_rows <= kMaxPlaces && workspace.count(bin) >= kMinIdsForPlaces;
  const int64_t max_rows = !sums_first ? 0
      : has_places ? std::min(possible_rows, workspace.count(bin))
                   : kMaxSummedRows;
  // Each thread keeps its own, as in sort_bin().
  thread_local Buffer<float> scratch;
  thread_local Buffer<uint32_t> summed_rows;
  thread_local std::vector<uint16_t> places(kMaxPlaces);
  constexpr auto kSlots = static_cast<int64_t>(kernels::kMaxSlots);
  scratch.resize((3 + kSlots + max_rows) * dim);
  float* slot_rows = scratch.data() + (3 + max_rows) * dim;  // [kSlots, dim]
  summed_rows.resize(max_rows);
  const std::vector<float> zeros(sweep ? dim : 0, 0.0F);
  kernels::UpdateArgs args{
      .table = mutable_rows(table.parameters),
      .contributions = has_places
          ? workspace.contributions.data() + workspace.bin_begin[bin]
          : group_bin(update, workspace, bin),
      .count = workspace.count(bin),
      .sources = workspace.sources.data(),
      .gradient = scratch.data(),
      .direction = scratch.data() + dim,
      .weights = scratch.data() + 2 * dim,
      .accumulate = update.rows.accumulate,
      .stages = update.rows.stages,
      .sweep = sweep,
      .first_row = static_cast<uint32_t>(std::min(end_row, bin << shift)),
      .end_row = static_cast<uint32_t>(end_row),
      .zeros = zeros.data()};
  if (sums_first) {
    args.sums = {
        .rows = summed_rows.data(),
        .sums = scratch.data() + 3 * dim,
        .max_rows = max_rows};
  }
  if (has_places) {
    args.sums.places = places.data();
    args.sums.number_of = {
        .low_mask = (1U << shift) - 1, .shared_bits = workspace.bin_bits};
  }
  if (update.record.index != nullptr) {
    record_uses(update.record, args.contributions, args.count);
  }
  if (sweep) {
    table.mark(std::views::iota(args.first_row, args.end_row));
  } else {
    table.mark(
        std::span(args.contributions, static_cast<size_t>(args.count)),
        &kernels::Contribution::row);
  }
  args.table.rounding = update.rounding;
  std::array<kernels::StoredRows, kernels::kMaxSlots> narrow_slots;
  for (Slot& slot : table.slots) {
    if (slot.values.scalar_type() == at::kFloat) {
      args.slots[slot.position] = slot.values.mutable_data_ptr<float>();
      continue;
    }
    kernels::StoredRows& narrow = narrow_slots[slot.position];
    narrow = mutable_rows(slot.values);
    narrow.rounding = update.rounding;
    narrow.rounding.is_stochastic = true;
    narrow.rounding.key = mix_bits(update.rounding.key + slot.position + 1);
    args.slots[slot.position] =
        slot_rows + static_cast<int64_t>(slot.position) * dim;
    args.narrow_slots = narrow_slots.data();
  }
  active_kernels().update(args, update.rows.rule);
}

}  // namespace tessera
