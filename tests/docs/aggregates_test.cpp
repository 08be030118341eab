// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.h>

#include <type_traits>

namespace tessera {

namespace {

template <class... Types>
constexpr bool are_aggregates = (std::is_aggregate_v<Types> && ...);

// A constructor would break the programs of users that name the fields: {.k = 20}.
static_assert(are_aggregates<
              CausalSelfAttentionOptions,
              CosineContrastiveLossOptions,
              DINAttentionOptions,
              DeepFMOptions,
              DiceOptions,
              FactorizationMachineOptions,
              FaissIndexOptions,
              FoldInOptions,
              MMoEOptions,
              MatrixFactorizationOptions,
              RankingLists,
              RankingLossOptions,
              RetrievalOptions,
              SASRecOptions,
              SampledLossOptions,
              SampledScores,
              SamplingProbabilityOptions,
              SimpleXOptions,
              TransformerBlockOptions,
              WarpLossOptions,
              data::detail::BatchOptions,
              data::detail::CacheOptions,
              data::detail::CollectOptions,
              data::FileOptions,
              data::LeaveOneOut,
              data::NegativeSampler::Options,
              data::PipelineOutput,
              data::detail::ShuffleOptions,
              data::SplitByShare,
              data::SplitByTime,
              data::SplitByUser,
              data::detail::TextVectorOptions,
              data::detail::UserItemsOptions,
              data::transforms::Vocabulary,
              distributed::PlanOptions,
              training::CalibrationErrorOptions,
              training::ScoreMetricOptions,
              training::CandidateVectors,
              training::CatalogueCoverageOptions,
              training::CorpusEvaluationOptions,
              training::CorpusQueries,
              training::EarlyStoppingOptions,
              training::FitOptions,
              training::LearningCurvesOptions,
              training::StepResult,
              training::RankingMetricOptions,
              training::Predictions,
              training::Profile::Row,
              training::TaskResult,
              training::TensorBoardOptions,
              training::TrainStepOptions,
              training::TrainingCheckpointOptions>);

}  // namespace

}  // namespace tessera
