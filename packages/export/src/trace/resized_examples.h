// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::exporting {

/// The batch size of a model without features. Inputs with another first size do not belong
/// to the batch.
inline constexpr int64_t kBatchOfInputs = 11;

/// Makes batches of any size from an example. The sizes of a batch are called symbols:
/// first the batch size, then the number of ids of each sparse or ragged feature.
class ResizedExamples {
 public:
  /// Errors:  c10::ValueError beginning with `where`, for an example that is empty or
  ///          whose features disagree.
  ResizedExamples(const ExportExample& example, const std::string& where);

  /// A description of each symbol: "the batch size", "the number of ids of 'user/history'".
  const std::vector<std::string>& descriptions() const {
    return descriptions_;
  }
  /// The values of the symbols in the example.
  const std::vector<int64_t>& sizes() const {
    return sizes_;
  }

  /// A batch with these sizes, made from the example's ids plus `shift`. If the batch size
  /// is 0, there are no ids, whatever the other sizes are.
  ExportExample at(const std::vector<int64_t>& sizes, int64_t shift = 0) const;

  /// A batch of `size` examples, with about as many ids per example as in the example.
  ExportExample with_batch_size(int64_t size) const;

 private:
  struct FeatureSize {
    size_t symbol = 0;  // 0: dense
    int64_t rows_per_example = 1;
  };

  Feature resize(
      const Feature& feature,
      const FeatureSize& size,
      const std::vector<int64_t>& sizes,
      int64_t shift) const;
  // Returns the symbol that is the first size of a tensor, or -1 if it is no symbol.
  int64_t symbol_of(const at::Tensor& input) const;

  const ExportExample& example_;
  std::vector<std::string> descriptions_;
  std::vector<int64_t> sizes_;
  std::vector<FeatureSize> features_;
};

}  // namespace tessera::exporting
