"""Tests docs/upgrade.py on sources of older versions and on code that must stay as it is."""

import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("upgrade", ROOT / "docs" / "upgrade.py")
UPGRADE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(UPGRADE)


def find_header(header):
    """The files of this header in the core and in the packages."""
    folders = [ROOT, *(ROOT / "packages").iterdir()]
    return [path for folder in folders if (path := folder / "include" / header).is_file()]


class UpgradeTest(unittest.TestCase):
    def expect(self, old, new):
        self.assertEqual(UPGRADE.upgrade(old), new)
        self.assertEqual(UPGRADE.upgrade(new), new, "a second run changes it again")

    def test_includes(self):
        self.expect("#include <tessera/nest.h>\n", "#include <tessera/features/nest.h>\n")
        self.expect(
            '#include "tessera/sharding.h"\n',
            '#include "tessera/engine/sharding_options.h"\n#include "tessera/engine/sum_gradients.h"\n',
        )
        self.expect("#include <tessera/layers/training/fit.h>\n", "#include <tessera/training/fit.h>\n")
        for folder in ("data", "serialization"):
            self.expect(
                f"#include <tessera/{folder}/pipeline_file.h>\n", "#include <tessera/data/feature_pipeline.h>\n"
            )
        self.expect("#include <tessera/optim/is_alternative.h>\n", "#include <tessera/optim/learning_rate.h>\n")
        self.expect("#include <tessera/layers/mlp.h>\n", "#include <tessera/layers/dense/mlp.h>\n")
        self.expect("#include <tessera/layers/sasrec.h>\n", "#include <tessera/models/sasrec.h>\n")
        self.expect("#include <tessera/distributed/dense_gradients.h>\n", "#include <tessera/engine/sum_gradients.h>\n")
        self.expect("#include <tessera/tessera.h>\n", "#include <tessera/tessera.h>\n")
        self.expect("#include <tessera/optim/optimizer.h>\n", "#include <tessera/optim/optimizers.h>\n")

    def test_new_headers_exist(self):
        for headers in (UPGRADE.HEADERS | UPGRADE.SPLIT_HEADERS).values():
            for header in headers:
                self.assertTrue(find_header(header), header)

    def test_old_headers_are_gone(self):
        for header in UPGRADE.HEADERS:
            self.assertFalse(find_header(header), header)

    def test_names(self):
        self.expect("tessera::fit(a, b);", "tessera::training::fit(a, b);")
        self.expect("tessera::transforms::Hash h;", "tessera::data::transforms::Hash h;")
        self.expect("tessera::make_mpi_backend()", "tessera::distributed::make_mpi_backend()")
        self.expect("tessera::TPUEmbedding layer;", "tessera::TPUEmbedding layer;")
        for call in ("Strategy::sharded(backend)", "tessera::Strategy::sharded(backend)"):
            self.expect(call, "tessera::distributed::sharded_strategy(backend)")

        self.expect("TablePlacement::whole(2)", "TablePlacement::table_wise(2)")
        self.expect("TablePlacement::Kind::kSplit", "TablePlacement::Kind::kRowWise")
        self.expect("Strategy::engine({.lookup_threads = 2})", "Strategy::fused({.lookup_threads = 2})")
        self.expect("Strategy::Engine options;", "Strategy::Fused options;")
        self.expect("tessera::Strategy::dense()", "tessera::Strategy::padded()")
        self.expect("strategy.is_engine()", "strategy.is_fused()")
        self.expect("layer->dense_embedding()->save(a)", "layer->small_embedding()->save(a)")
        self.expect('p["model.dense_embedding.t"]', 'p["model.dense_embedding.t"]')
        self.expect('archive.read("dense_embedding", a);', 'archive.read("dense_embedding", a);')
        self.expect("tessera::require_rows(inputs, kName)", "tessera::check_rows(inputs, kName)")
        self.expect("options.most_malformed_lines = 2;", "options.max_malformed_lines = 2;")

    def test_types(self):
        self.expect(
            "tessera::data::LineBlock block; tessera::CriteoShard shard;",
            "tessera::data::LineSource::Block block; tessera::data::CriteoReaderOptions::Shard shard;",
        )
        self.expect("data::VocabularyLimits limits;", "tessera::data::detail::VocabularyLimits limits;")
        self.expect("std::unique_ptr<data::CsvSource> source;", "std::unique_ptr<tessera::data::ExampleSource> source;")
        self.expect("struct CacheOptions {}; TableInfo info;", "struct CacheOptions {}; TableInfo info;")
        self.expect(
            "using namespace tessera::serving;\nRawColumn a;\nPublishInfo b;\n",
            "using namespace tessera::serving;\nRawColumns::Column a;\ntessera::serving::detail::PublishInfo b;\n",
        )

    def test_training_types(self):
        self.expect("NDCGOptions{.k = 5}", "RankingMetricOptions{.k = 5}")
        self.expect("RecallAtKOptions{.k = 5}", "RankingMetricOptions{.k = 5}")
        self.expect(
            "{.validation =\n     training::Validation{\n         .pass = make_pass(test, loss_of)}}",
            "{.validation = make_pass(test, loss_of)}",
        )
        self.expect(
            "{.validation = Validation{.pass = pass, .metrics = {auc, loss}}}",
            "{.validation = pass, .validation_metrics = {auc, loss}}",
        )
        self.expect("tessera::LogLossOptions o;", "tessera::training::ScoreMetricOptions o;")
        self.expect("{.ties = Ties::kWorst}", "{.ties = RankingMetricOptions::Ties::kWorst}")
        self.expect("for (const EpochRecord& r : h.epochs)", "for (const History::Record& r : h.epochs)")
        self.expect("{.signals = training::Signals::kLeave}", "{.stop_on_signals = false}")
        self.expect("{.unoptimized = Unoptimized::kAllow}", "{.allow_unoptimized = true}")
        self.expect("{.movement_warning = MovementWarning::kOff}", "{.movement_warning = false}")
        self.expect(
            "{.no_relevant_item = training::NoRelevantItem::kLeftOut}", "{.skip_queries_without_relevant = true}"
        )
        self.expect("TableActivity(layers, TableActivityOptions{.max_rows = 7})", "TableActivity(layers, 7)")
        self.expect("make_mpi_backend({.timeout = minutes(5)})", "make_mpi_backend(minutes(5))")

    def test_specs(self):
        self.expect("std::get_if<optim::Adam>(&table.optimizer)", "table.optimizer.get_if<optim::Adam>()")
        self.expect("if (std::holds_alternative<optim::SGD>(s))", "if ((s.get_if<optim::SGD>() != nullptr))")
        self.expect("std::get<tessera::optim::SGD>(s)", "std::get<tessera::optim::SGD>(s.variant())")

    def test_using_directives(self):
        self.expect(
            "using namespace tessera;\nCriteoReader r;\nLogLoss l;\n",
            "using namespace tessera;\nusing namespace tessera::data;\nusing namespace tessera::training;\n"
            "CriteoReader r;\nLogLoss l;\n",
        )


if __name__ == "__main__":
    unittest.main()
