// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/model_parts.h"

#include "packages/export/src/trace/visit_weights.h"
#include "packages/serving/src/publisher/publish_options.h"
#include "src/common/check.h"

namespace tessera::serving {

std::vector<Part> parts_of(torch::nn::Module& model) {
  std::vector<Part> parts;
  for (const auto& [tables, prefix] : tables_and_prefixes(model)) {
    auto& module = dynamic_cast<torch::nn::Module&>(*tables);
    parts.push_back({module.shared_from_this(), prefix});
  }
  TESSERA_CHECK_VALUE(
      !parts.empty(),
      "{} the model has no tables. Pass one with a TPUEmbedding or an EmbeddingEngineModule.",
      kPublisher);
  return parts;
}

std::shared_ptr<RankGroup> ranks_of(const std::vector<Part>& parts) {
  std::shared_ptr<RankGroup> ranks;
  for (const Part& part : parts) {
    if (!part.is_sharded()) {
      continue;
    }
    const std::shared_ptr<RankGroup>& own = part.tables().state().ranks;
    TESSERA_CHECK_NOT_IMPLEMENTED(
        ranks == nullptr || ranks == own,
        "{} two layers of the model are spread over different processes. Publish them one by one.",
        kPublisher);
    ranks = own;
  }
  return ranks == nullptr ? make_solo_group() : ranks;
}

}  // namespace tessera::serving
