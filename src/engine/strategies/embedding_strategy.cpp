// SPDX-License-Identifier: Apache-2.0
#include "src/engine/strategies/embedding_strategy.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/lookup_worker.h"
#include "src/common/rank_group.h"
#include "src/engine/table_store.h"

#include <c10/util/overloaded.h>

#include <algorithm>

namespace tessera {

namespace {

// The part of a text around its first difference from another text.
std::string excerpt(const std::string& text, size_t difference) {
  constexpr size_t kBefore = 60;
  constexpr size_t kLength = 120;
  const size_t begin = difference - std::min(difference, kBefore);
  std::string part = begin > 0 ? "..." : "";
  part.append(text.substr(begin, kLength));
  return part.append(begin + kLength < text.size() ? "..." : "");
}

std::string to_text(const ShardingOptions& options) {
  std::string text = c10::str(
      ", split = ",
      to_string(options.split),
      ", row_transport = ",
      options.row_transport,
      ", gradient_transport = ",
      options.gradient_transport);
  for (const auto& [table, placement] : options.placement) {
    text.append(c10::str(
        ", placement of '", shorten(table), "' = ", to_string(placement)));
  }
  return text;
}

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_strategy(
    const Strategy& strategy,
    Apply apply,
    std::shared_ptr<EmbeddingState> state) {
  return std::visit(
      c10::overloaded(
          [&](const Strategy::Fused& fused) {
            check_lookup_threads(fused.lookup_threads, "[Strategy::Fused]");
            auto store =
                std::make_shared<TableStore>(state, fused.lookup_threads);
            return make_fused_strategy(state, std::move(store), apply);
          },
          [&](const Strategy::Host& host) {
            return make_host_strategy(state, host);
          },
          [&](const Strategy::Padded&) { return make_padded_strategy(state); },
          [&](const Strategy::Sharded& sharded) {
            check_lookup_threads(
                sharded.options.lookup_threads, "[ShardingOptions]");
            auto store = sharded.make_store(sharded, state);
            return make_fused_strategy(state, std::move(store), apply);
          }),
      strategy.options());
}

WithSlots slots_under(const Strategy& strategy) {
  return strategy.is_fused() ? WithSlots::kYes : WithSlots::kNo;
}

Shards shards_under(const Strategy& strategy) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  if (sharded == nullptr) {
    return {};
  }
  return {
      .ranks = sharded->ranks,
      .rows_of = [sharded = *sharded](
                     const std::string& name, const TableConfig& table) {
        return sharded.rows_of(sharded, name, table);
      }};
}

void configure_ranks(
    const Strategy& strategy,
    c10::function_ref<std::string()> configure) {
  const auto* sharded = std::get_if<Strategy::Sharded>(&strategy.options());
  if (sharded == nullptr) {
    configure();
    return;
  }
  RankGroup& ranks = *sharded->ranks;
  std::string text;
  const std::exception_ptr error = error_of([&] {
    text = configure();  // checks the options, which to_text() relies on
    text += to_text(sharded->options);
  });
  const RankGroup::Arrivals arrivals = ranks.arrive(
      Rendezvous::kConfigure, error, {.bodies = {bytes_of(text)}})();
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string other = text_of(arrivals.bodies[rank]);
    const size_t difference =
        std::mismatch(text.begin(), text.end(), other.begin(), other.end())
            .first -
        text.begin();
    TESSERA_CHECK_VALUE(
        other == text,
        "[sharded_strategy] rank {} has another configuration than rank {}:\n  rank {}: {}\n  rank {}: {}\nConstruct the layer with the same options on all ranks.",
        rank,
        ranks.rank(),
        rank,
        excerpt(other, difference),
        ranks.rank(),
        excerpt(text, difference));
  }
}

}  // namespace tessera
