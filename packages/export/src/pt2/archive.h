// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"
#include "serialization/mapped_file.h"
#include "src/common/atomic_file.h"

#include <tessera/export/pt2_program.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::pt2 {

/// The content of a file.
struct Archive {
  Graph graph = {};
  std::vector<Weight> weights = {};
  /// The arguments and the outputs of a call.
  Pt2Signature signature = {};
};

/// Sets the dtype and the shape of a value to those of its tensor in the graph.
void add_type(Pt2Value& value, const Graph& graph);

/// Writes the archive. Each weight goes from its memory to the file, so contiguous
/// weights are not copied. A tensor from Weight::make is freed before the next one is made.
/// `sample` has arguments for a call.
/// Errors:  those of AtomicFile; c10::ValueError for dtypes that files can't hold, and for
///          names that are not UTF-8.
void write_archive(
    AtomicFile& file,
    const Archive& archive,
    const std::vector<at::Tensor>& sample);

/// Reads a file that write_archive() wrote. Its weights stay in `file`. All records are
/// compared with their checksums.
/// Errors:  c10::ValueError beginning with `place` for a file that is damaged or that
///          another program wrote.
Archive read_archive(
    std::shared_ptr<MappedFile> file,
    const std::string& place);

}  // namespace tessera::pt2
