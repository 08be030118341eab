// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/optim/optimizer.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace tessera::optim {

/// How closely a translated Keras optimizer follows Keras.
enum class Fidelity {
  /// Uses the formulas of the TPU, as upstream does: SGD, Adagrad (without epsilon),
  /// Adam (without bias correction) and Ftrl. An update changes only the rows of the
  /// batch. Other classes and most options are refused.
  kTpu,
  /// Uses Keras's formulas. An update changes only the rows of the batch.
  kLazy,
  /// Gives Keras's results, up to rounding. If Keras changes rows or slots that have no
  /// gradient, each update sweeps the whole table.
  kExact,
};

/// Translates what keras.optimizers.serialize wrote (Keras 3, tf_keras, legacy Keras)
/// to a spec. Schedules are translated, too. `decay` of legacy Keras becomes an
/// InverseTimeDecay.
///
///               kTpu                kLazy, kExact
///   classes     SGD, Adagrad,       also AdamW, RMSprop, Adadelta, Lion,
///               Adam, Ftrl          Adamax, Nadam
///   refused     momentum, nesterov, clipnorm, global_clipnorm, use_ema,
///   unless      decay, amsgrad,     loss_scale_factor
///   Keras's     Adagrad's epsilon,
///   default     shrinkage, and any
///               clipping,
///               weight_decay, ...
///
/// With kExact, the result is what Keras computes from dense gradients, in which rows
/// outside the batch have zeros. For legacy Keras, it is what Keras computes from
/// IndexedSlices of the rows that are looked up, with one exception. If a bag is empty,
/// TensorFlow's lookup of sparse ids adds row 0 to these rows, with a gradient of zero, and
/// Tessera does not. So only Keras lets momentum move row 0. For example, a gradient of 1
/// moves a weight of row 0 from 1 to 0.9 with SGD(0.1, momentum = 0.9). If the next batch
/// has an empty bag and no id 0, Keras moves the weight to 0.81, and here it stays at 0.9.
///
/// kExact refuses legacy Nadam. That optimizer decays the slots of rows without a gradient,
/// but does not move these rows. The `decay` of legacy Nadam becomes schedule_decay.
/// clipvalue limits the sum over a row's duplicates.
/// Errors:  c10::ValueError that names the class, option or key, and what to do.
/// Source:  tfrs.layers.embedding.TPUEmbedding (kTpu); keras.optimizers.
/// Differs: kTpu accepts the new optimizers of Keras, too. Upstream refuses them
///          because of TensorFlow.
OptimizerSpec translate_keras_optimizer(
    const Json& config,
    Fidelity fidelity = Fidelity::kTpu);
OptimizerSpec translate_keras_optimizer(
    const nlohmann::json& config,
    Fidelity fidelity = Fidelity::kTpu);

/// Translates JSON that is given as text, or the name of an optimizer. The names sgd,
/// adagrad, adam, ftrl, rmsprop, adadelta, lion, adamax and nadam mean the native specs
/// with their defaults. The fidelity has no effect on names.
OptimizerSpec translate_keras_optimizer(
    const std::string& text,
    Fidelity fidelity = Fidelity::kTpu);
OptimizerSpec translate_keras_optimizer(
    const char* text,
    Fidelity fidelity = Fidelity::kTpu);

/// Writes a spec as JSON that keras.optimizers.deserialize of Keras 3 reads.
///
/// translate_keras_optimizer() turns the JSON into an equal spec, with Fidelity::kLazy
/// for a lazy spec and kExact for others.
/// Errors:  c10::ValueError that names what has no counterpart in Keras 3: a rule,
///          a formula (Adagrad's epsilon outside the root), a common option.
Json to_keras(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
