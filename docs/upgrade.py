#!/usr/bin/env python3
"""Rewrites the includes and names of sources that were written for Tessera 0.1 or 0.2.

    python3 docs/upgrade.py src/*.cpp src/*.h

Each file is changed in place; CHANGELOG.md lists what moved. Files that need no change are left alone.
"""

import argparse
import pathlib
import re

# Old header: new headers.
HEADERS = {
    "tessera/checkpoint_options.h": ["tessera/engine/checkpoint_options.h"],
    "tessera/distributed/dense_gradients.h": ["tessera/engine/sum_gradients.h"],
    "tessera/embedding_engine.h": ["tessera/engine/embedding_engine.h"],
    "tessera/embedding_tables.h": ["tessera/tables/embedding_tables.h"],
    "tessera/feature.h": ["tessera/features/feature.h"],
    "tessera/feature_config.h": ["tessera/features/feature_config.h"],
    "tessera/initializer.h": ["tessera/tables/initializer.h"],
    "tessera/mpi_backend.h": ["tessera/distributed/mpi_backend.h"],
    "tessera/nest.h": ["tessera/features/nest.h"],
    "tessera/data/pipeline_file.h": ["tessera/data/feature_pipeline.h"],
    "tessera/optim/custom_optimizer.h": [
        "tessera/optim/custom_rule.h",
        "tessera/optim/optimizers/custom_optimizer.h",
    ],
    "tessera/optim/is_alternative.h": ["tessera/optim/learning_rate.h"],
    "tessera/optim/json_text.h": ["tessera/common/json_text.h"],
    "tessera/optim/json_value.h": ["tessera/common/json_value.h", "tessera/optim/optimizer_json.h"],
    "tessera/optim/shorten.h": ["tessera/common/shorten.h"],
    "tessera/partial_shape.h": ["tessera/features/partial_shape.h"],
    "tessera/serialization/pipeline_file.h": ["tessera/data/feature_pipeline.h"],
    "tessera/serialization/tensor_files.h": ["tessera/formats/npy.h", "tessera/formats/safetensors.h"],
    "tessera/serving_lookup.h": ["tessera/engine/serving_lookup.h"],
    "tessera/sharding.h": ["tessera/engine/sharding_options.h", "tessera/engine/sum_gradients.h"],
    "tessera/sharding_plan.h": ["tessera/distributed/sharding_plan.h"],
    "tessera/step_memory.h": ["tessera/common/step_memory.h"],
    "tessera/strategy.h": ["tessera/engine/strategy.h", "tessera/distributed/sharded_strategy.h"],
    "tessera/table_config.h": ["tessera/tables/table_config.h"],
}

# Headers that moved when the packages were made. Old folder, new folder: names.
MOVED_HEADERS = {
    ("tessera/layers", "tessera/layers/dense"): """
        activation concatenate cross dot_interaction embed_reduce mlp multi_layer_dcn
    """,
    ("tessera/layers", "tessera/export"): """
        export_pt2 export_torchscript exported_model load_state_dict
    """,
    ("tessera/layers", "tessera/models"): """
        causal_self_attention deep_fm dice din_attention factorization_machine linear_cross_entropy
        matrix_factorization mixture_of_experts ranking_losses retrieval sampled_losses sampling_probability
        sasrec transformer_block
    """,
    ("tessera/layers", "tessera/search"): """
        faiss_index top_k_index
    """,
    ("tessera/layers/training", "tessera/search"): """
        corpus_evaluation
    """,
    ("tessera/layers/training", "tessera/training"): """
        batch_source calibration_metrics callback checkpoint classification_metrics early_stopping fit
        history history_files learning_curves learning_rate_log learning_rate_scheduler metrics pointers
        predict profile progress_bar ranking_metrics retrieval_metrics stop_signal table_activity
        task_metrics tensorboard terminate_on_non_finite train_step
    """,
    ("tessera/serialization", "tessera/data"): """
        column_types_file
    """,
    ("tessera/serialization", "tessera/formats"): """
        npy safetensors
    """,
    ("tessera/serialization", "tessera/export"): """
        pt2_program
    """,
}
for (old, new), names in MOVED_HEADERS.items():
    HEADERS |= {f"{old}/{name}.h": [f"{new}/{name}.h"] for name in names.split()}

# Headers that are still there, but without most of what they had.
SPLIT_HEADERS = {
    "tessera/optim/optimizer.h": ["tessera/optim/optimizers.h"],
}

# Names that were in tessera:: and are in a namespace below it now.
NAMESPACES = {
    namespace: names.split()
    for namespace, names in {
        "data": """
            Column Columns CriteoBatch CriteoReader
            CriteoReaderOptions CriteoReport FeaturePipeline MalformedLines
            Missing NormalizeBuilder PipelineBatch PipelineOutput Transform VocabularyBuilder
            VocabularyValues gives_numbers kCriteoCategories kCriteoIntegers
            kMissing missing_from_string pipeline_from_json quantile_boundaries to_columns
            transforms
        """,
        "distributed": """
            MpiBackendOptions PlanOptions PlannedTable ShardingPlan broadcast_parameters
            has_mpi make_mpi_backend plan_sharding sum_gradients
        """,
        "training": """
            AUC Accuracy AccuracyOptions Better Callback Callbacks Checkpoint CsvHistory
            EarlyStopping EarlyStoppingOptions EpochRecord FitOptions History HistoryFile
            JsonHistory LearningCurves LearningCurvesOptions LearningRateLog LogLoss
            LogLossOptions Logs Mean Metric Metrics Progress ProgressBar
            ProgressBarOptions RMSE ScoreKind Signals StepResult StopSignal
            TerminateOnNonFinite TopKAccuracy TopKAccuracyOptions TrainStepOptions Training
            TrainingCheckpointOptions Validation apply_update check_loss evaluate fit
            has_weights history_from_json learning_curves_svg learning_rates load_weights
            make_train_step save_weights to_csv
        """,
    }.items()
}


def upgrade_includes(text):
    def replace(match):
        headers = (HEADERS | SPLIT_HEADERS).get(match["header"])
        if headers is None:
            return match[0]
        begin, end = match["open"], {"<": ">", '"': '"'}[match["open"]]
        return "\n".join(f"#include {begin}{header}{end}" for header in headers)

    return re.sub(r'#[ \t]*include[ \t]*(?P<open>[<"])(?P<header>tessera/[^>"\n]+)[>"]', replace, text)


# What a table's placement is called now, in the words of TorchRec.
PLACEMENTS = {
    "TablePlacement::rows": "TablePlacement::row_wise",
    "TablePlacement::replicated": "TablePlacement::data_parallel",
    "TablePlacement::whole": "TablePlacement::table_wise",
    "Kind::kSplit": "Kind::kRowWise",
    "Kind::kReplicated": "Kind::kDataParallel",
    "Kind::kWhole": "Kind::kTableWise",
}

# Types that have moved, by their namespace. Those in `detail` are options that are usually written as {...}.
MOVED_TYPES = {
    "data": {
        "BatchOptions": "detail::BatchOptions",
        "CacheOptions": "detail::CacheOptions",
        "CollectOptions": "detail::CollectOptions",
        "CriteoShard": "CriteoReaderOptions::Shard",
        "CriteoSource": "ExampleSource",
        "CsvSource": "ExampleSource",
        "LineBlock": "LineSource::Block",
        "LineSourceOptions": "LineSource::Options",
        "NegativeSamplingOptions": "NegativeSampler::Options",
        "ShuffleOptions": "detail::ShuffleOptions",
        "StartAfterEnd": "LineSource::StartAfterEnd",
        "TextVectorOptions": "detail::TextVectorOptions",
        "UserItemsOptions": "detail::UserItemsOptions",
        "VocabularyLimits": "detail::VocabularyLimits",
    },
    "serving": {
        "DenseWeight": "Version::DenseWeight",
        "FeatureInfo": "Version::FeatureInfo",
        "PublishInfo": "detail::PublishInfo",
        "PublishSchedule": "PublishCallback::Schedule",
        "RawColumn": "RawColumns::Column",
        "TableInfo": "Version::TableInfo",
    },
}

# Options with another name.
OPTIONS = {"most_malformed_lines": "max_malformed_lines"}

# Strategies, functions and methods with another name.
FUNCTIONS = {
    "Strategy::engine": "Strategy::fused",
    "Strategy::Engine": "Strategy::Fused",
    "Strategy::dense": "Strategy::padded",
    "Strategy::Dense": "Strategy::Padded",
    "is_engine": "is_fused",
    r"dense_embedding(?=\()": "small_embedding",
    "require_fit": "check_fits",
    "require_floating": "check_floating",
    "require_key": "field_of",
    "require_kind": "check_kind",
    "require_known_keys": "check_known_keys",
    "require_rows": "check_rows",
}

# Types of the training package with another name.
TYPES = {
    "MetricBatch": "StepResult",
    "LogLossOptions": "ScoreMetricOptions",
    "NormalizedEntropyOptions": "ScoreMetricOptions",
    "CalibrationOptions": "ScoreMetricOptions",
    "NDCGOptions": "RankingMetricOptions",
    "RecallAtKOptions": "RankingMetricOptions",
    "Ties(?=::k[RWP])": "RankingMetricOptions::Ties",
    "TaskPredictions": "TaskResult",
    "EpochRecord": "History::Record",
    "StepRecord": "History::Record",
    "RestoredEpoch": "History::Restored",
    "CalibrationBin": "CalibrationError::Bin",
    "ProfileRow": "Profile::Row",
    "PlannedTable": "ShardingPlan::Table",
}

# Options of fit(), of metrics and of others that are plain values now.
SWITCHES = {
    r"\.validation =\s+(?:\w+::)*Validation\{\s*\.pass = ([^{}]*),\s*\.metrics = (\{[^{}]*\}|[^{},]*),?\s*\}": (
        r".validation = \1, .validation_metrics = \2"
    ),
    r"\.validation =\s+(?:\w+::)*Validation\{\s*\.pass = ([^{}]*?),?\s*\}": r".validation = \1",
    r"\.signals = (?:\w+::)*Signals::kLeave": ".stop_on_signals = false",
    r"\.signals = (?:\w+::)*Signals::kStop": ".stop_on_signals = true",
    r"(?:\w+::)*MovementWarning::kOff": "false",
    r"(?:\w+::)*MovementWarning::kOn": "true",
    r"\.unoptimized = (?:\w+::)*Unoptimized::kAllow": ".allow_unoptimized = true",
    r"\.unoptimized = (?:\w+::)*Unoptimized::kError": ".allow_unoptimized = false",
    r"\.no_relevant_item = (?:\w+::)*NoRelevantItem::kLeftOut": ".skip_queries_without_relevant = true",
    r"\.no_relevant_item = (?:\w+::)*NoRelevantItem::kCountsAsZero": ".skip_queries_without_relevant = false",
    r"(?:\w+::)*TableActivityOptions\{\.max_rows = ([^{}]*)\}": r"\1",
    r"(?<=make_mpi_backend\()\{\.timeout = ([^{}]*)\}": r"\1",
}

# An OptimizerSpec held its variant as a base class. std::visit() is left to the compiler's errors.
SPEC_CALLS = {
    r"std::get_if<((?:tessera::)?optim::\w+)>\(&([\w.]+)\)": r"\2.get_if<\1>()",
    r"std::holds_alternative<((?:tessera::)?optim::\w+)>\(([\w.]+)\)": r"(\2.get_if<\1>() != nullptr)",
    r"std::get<((?:tessera::)?optim::\w+)>\(([\w.]+)\)": r"std::get<\1>(\2.variant())",
}


def upgrade_types(text, namespace, types):
    """Renames types with a namespace, and others if the file uses it: other libraries have such names, too."""
    is_used = re.search(rf"^using namespace tessera(::{namespace})?;", text, flags=re.M)

    def replace(match):
        new = types[match["name"]]
        if match["prefix"] is None and not is_used:
            return match[0]
        return new if match["prefix"] is None and "detail::" not in new else f"tessera::{namespace}::{new}"

    prefix = rf"(?P<prefix>(?:tessera::)?{namespace}::|tessera::)?"
    return re.sub(rf"(?<![\w:.]){prefix}(?P<name>{'|'.join(types)})\b", replace, text)


def upgrade_names(text):
    text = re.sub(r"\b(?:tessera::)?Strategy::sharded\(", "tessera::distributed::sharded_strategy(", text)
    for old, new in (PLACEMENTS | OPTIONS).items():
        text = re.sub(rf"\b{old}\b", new, text)
    for namespace, types in MOVED_TYPES.items():
        text = upgrade_types(text, namespace, types)
    for old, new in FUNCTIONS.items():
        text = re.sub(rf'(?<!")\b{old}\b', new, text)  # files keep their names
    for old, new in (SPEC_CALLS | SWITCHES).items():
        text = re.sub(old, new, text)
    used = []
    for namespace, names in NAMESPACES.items():
        pattern = "|".join(sorted(names, key=len, reverse=True))
        text = re.sub(rf"\btessera::(?=(?:{pattern})\b)", f"tessera::{namespace}::", text)
        if re.search(rf"(?<![\w:.])(?:{pattern})\b", text):
            used.append(namespace)
    for old, new in TYPES.items():
        text = re.sub(rf"\b(?<!RankingMetricOptions::){old}\b", new, text)
    used = [namespace for namespace in used if f"using namespace tessera::{namespace};" not in text]
    directives = "".join(f"\nusing namespace tessera::{namespace};" for namespace in used)
    return re.sub(r"^(using namespace tessera;)$", lambda match: match[1] + directives, text, flags=re.M)


def upgrade(text):
    return upgrade_names(upgrade_includes(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    for path in parser.parse_args().files:
        before = path.read_text()
        after = upgrade(before)
        if after != before:
            path.write_text(after)
            print(f"{path}: upgraded")


if __name__ == "__main__":
    main()
