// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/common_fields.h>

#include "optim/keras_config.h"
#include "optim/range_checks.h"
#include "optim/row_update.h"
#include "optim/tensor_update.h"
#include "src/kernels/kernels.h"

#include <vector>

namespace tessera::optim {

/// Kernels calculate in float32.
inline float as_float(double value) {
  return static_cast<float>(value);
}

/// All that the library needs to know about one optimizer. The source of each optimizer
/// in optim/optimizers/ has a subclass, and definition_of() returns one for a spec:
///
///   definition_of(spec)->slots();
template <class Spec>
struct OptimizerDefinition {
  explicit OptimizerDefinition(const Spec& spec) : spec(spec) {}
  virtual ~OptimizerDefinition() = default;

  /// The slots in the order in which they are created and saved.
  virtual std::vector<SlotSpec> slots() const = 0;

  /// Checks the spec's own options. validate(CommonOptions) checks the others.
  virtual void validate(const RangeChecks& checks) const = 0;

  /// The rule for the kernel, with the numbers of one update.
  virtual kernels::RowRule row_rule(const StepContext& context) const = 0;

  /// Updates rows by the same rule with stock LibTorch operators. It does not use the
  /// kernel.
  virtual void update_rows(const TensorUpdate& update) const = 0;

  /// Converts the values of slots that were read from SlotSpec::earlier_name, in place.
  virtual void convert_earlier_slots(std::vector<at::Tensor>& /*slots*/) const {
  }

  /// The classes of Keras that are translated to this spec.
  virtual std::vector<KerasClass> keras_classes() const {
    return {};
  }

  /// The JSON that Keras serializes for the same optimizer, which is the first class of
  /// keras_classes().
  virtual Json to_keras(const KerasWriter& writer) const {
    const std::vector<KerasClass> classes = keras_classes();
    writer.require(!classes.empty(), "the rule");
    return writer.write(classes.front().name, spec);
  }

  const Spec& spec;
};

}  // namespace tessera::optim
