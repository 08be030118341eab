// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/criteo_reader.h>
#include <tessera/data/example_source.h>

#include <memory>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp make_criteo_source
/// Examples in the Criteo click logs, with the columns of to_columns(). A reader returns
/// options.batch_size examples at a time.
///
///   const auto source = make_criteo_source({.files = {"day_0.gz"}});
///   const auto from_third = source->open(2);
///   const auto examples = from_third->next();
///   const Column& labels = examples->at("label");
///
/// open() skips the lines before the first example, without parsing them. With kSkip it
/// parses them, because malformed lines are not examples.
///
/// Errors:  those of CriteoReader; c10::ValueError if drop_last is set, because a source
///          gives all examples.
std::unique_ptr<ExampleSource> make_criteo_source(
    const CriteoReaderOptions& options);

}  // namespace tessera::data
