// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

#include "optim/keras_config.h"
#include "optim/keras_options.h"
#include "optim/keras_writer.h"
#include "optim/range.h"
#include "optim/row_update.h"
#include "optim/tensor_update.h"
#include "src/kernels/kernels.h"

#include <vector>

namespace tessera::optim {

/// Kernels calculate in float32.
inline float as_float(double value) {
  return static_cast<float>(value);
}

/// What the library knows about one optimizer. Its source in optim/optimizers/ derives
/// from this, and its function definition_of() returns the one object:
///
///   definition_of(spec).slots(spec);
template <class Spec>
class OptimizerDefinition {
 public:
  virtual ~OptimizerDefinition() = default;

  /// The name in JSON and in summaries. In lower case, it is also what stands for the
  /// spec with its defaults, if Keras has the optimizer.
  virtual const char* name() const = 0;

  /// In the order in which slots are created and saved.
  virtual std::vector<SlotSpec> slots(const Spec& spec) const = 0;

  /// Checks the spec's own options. CommonOptions has the others.
  virtual void validate(const Spec& spec, const Range& range) const = 0;

  /// The kernel's rule with the numbers of one update.
  virtual kernels::RowRule row_rule(
      const Spec& spec,
      const UpdateMoment& moment) const = 0;

  /// The same rule by stock LibTorch operators, independent of the kernel.
  virtual void update_rows(const Spec& spec, const TensorUpdate& update)
      const = 0;

  /// The classes of Keras that are translated to this spec.
  virtual std::vector<KerasClass> keras_classes() const {
    return {};
  }

  /// The reverse.
  virtual Json to_keras(const Spec& /*spec*/, const KerasWriter& writer) const {
    writer.require(false, "the rule");
    return nullptr;
  }
};

}  // namespace tessera::optim
