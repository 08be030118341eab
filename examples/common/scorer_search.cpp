// SPDX-License-Identifier: Apache-2.0
#include "examples/common/scorer_search.h"

#include "examples/common/stopwatch.h"

#include <tessera/models/item_scorers.h>

#include <utility>

namespace {

std::vector<double> recencies(ItemOrder order) {
  return order == ItemOrder::kTime ? std::vector{1.0, 0.9, 0.8, 0.6}
                                   : std::vector{1.0};
}

// The scores of a model of the library.
ItemScores scores_of(
    const std::shared_ptr<const tessera::ItemScorer>& model,
    double recency) {
  return [=](const tessera::RaggedFeature& histories) {
    return model->scores(histories, recency);
  };
}

// Adds the scorers with these neighbors.
void add_variants(
    Neighbors neighbors,
    tessera::Json settings,
    ItemOrder order,
    std::vector<ScorerVariant>& variants) {
  const auto shared = std::make_shared<const Neighbors>(std::move(neighbors));
  for (const double recency : recencies(order)) {
    settings["recency"] = recency;
    variants.push_back(
        {.settings = settings, .scores = neighbor_scores(shared, recency)});
  }
}

}  // namespace

ScorerChoice choose_scorer(
    const std::vector<ScorerFit>& fits,
    const ItemLists& train,
    const std::function<double(const ItemScores&)>& validate) {
  const Stopwatch watch;
  ScorerChoice best{.validation = -1.0};
  for (const ScorerFit& fit : fits) {
    const std::vector<ScorerVariant> variants = fit(train);
    for (size_t i = 0; i < variants.size(); ++i) {
      const double value = validate(variants[i].scores);
      tessera::Json entry = variants[i].settings;
      entry["validation"] = value;
      best.tries.push_back(std::move(entry));
      if (value > best.validation) {
        best.fit = fit;
        best.variant = i;
        best.settings = variants[i].settings;
        best.validation = value;
      }
    }
  }
  best.seconds = watch.seconds();
  return best;
}

std::vector<ScorerFit> ease_fits(int64_t num_items, ItemOrder order) {
  std::vector<ScorerFit> fits;
  for (const double user_exponent : {0.0, 0.5}) {
    for (const double regularization : {10.0, 50.0, 200.0}) {
      fits.emplace_back([=](const ItemLists& train) {
        const std::shared_ptr<const tessera::ItemScorer> model =
            tessera::make_ease(
                feature_of(train),
                {.num_items = num_items,
                 .regularization = regularization,
                 .user_exponent = user_exponent});
        std::vector<ScorerVariant> variants;
        for (const double recency : recencies(order)) {
          variants.push_back(
              {.settings =
                   {{"regularization", regularization},
                    {"user_exponent", user_exponent},
                    {"recency", recency}},
               .scores = scores_of(model, recency)});
        }
        return variants;
      });
    }
  }
  return fits;
}

std::vector<ScorerFit> neighbor_fits(int64_t num_items, ItemOrder order) {
  return {[=](const ItemLists& train) {
    constexpr size_t kMost = 500;
    const Neighbors neighbors = nearest_neighbors(train, num_items, kMost);
    std::vector<ScorerVariant> variants;
    for (const size_t most : {10, 20, 50, 100, 200, 500}) {
      add_variants(
          items_near(first_neighbors(neighbors, most)),
          {{"neighbors", most}},
          order,
          variants);
    }
    return variants;
  }};
}

std::vector<ScorerFit> rp3beta_fits(int64_t num_items, ItemOrder order) {
  std::vector<ScorerFit> fits;
  for (const double alpha : {0.5, 1.0}) {
    for (const double beta : {0.0, 0.3, 0.6}) {
      fits.emplace_back([=](const ItemLists& train) {
        constexpr size_t kMost = 500;
        const Neighbors neighbors = nearest_neighbors(
            train,
            num_items,
            kMost,
            {.user_exponent = alpha,
             .exponent = alpha,
             .other_exponent = beta});
        std::vector<ScorerVariant> variants;
        for (const size_t most : {100, 500}) {
          add_variants(
              first_neighbors(neighbors, most),
              {{"alpha", alpha}, {"beta", beta}, {"neighbors", most}},
              order,
              variants);
        }
        return variants;
      });
    }
  }
  return fits;
}

ScorerFit graph_filter_fit(int64_t num_items) {
  return [=](const ItemLists& train) {
    // The defaults are the published settings.
    return std::vector<ScorerVariant>{
        {.scores = scores_of(
             tessera::make_graph_filter(
                 feature_of(train), {.num_items = num_items}),
             1.0)}};
  };
}
