// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizer.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace tessera {

/// Keys keep their order.
using Json = nlohmann::ordered_json;

namespace optim {

/// How closely a translated Keras optimizer follows Keras.
enum class Fidelity {
  /// The accelerator's formulas, upstream's mapping: SGD, Adagrad (without its
  /// epsilon), Adam (without bias correction) and Ftrl, on rows of the batch.
  /// Other classes and most options are refused.
  kTpu,
  /// Keras's formulas, on rows of the batch only.
  kLazy,
  /// Keras's result to rounding: where Keras moves rows or slots without a
  /// gradient, each update sweeps the whole table.
  kExact,
};

/// What keras.optimizers.serialize wrote (Keras 3, tf_keras, legacy Keras), as
/// a spec. Schedules are translated, too; `decay` of legacy Keras becomes an
/// InverseTimeDecay.
///
///               kTpu                kLazy, kExact
///   classes     SGD, Adagrad,       besides: AdamW, RMSprop, Adadelta, Lion,
///               Adam, Ftrl          Adamax, Nadam
///   refused     momentum, nesterov, clipnorm, global_clipnorm, use_ema,
///   unless      decay, amsgrad,     loss_scale_factor
///   Keras's     Adagrad's epsilon,
///   default     shrinkage, and any
///               clipping, decay, ...
///
/// kExact gives what Keras computes from dense gradients, where rows without
/// one get zeros; for legacy Keras, what it computes from IndexedSlices.
/// kExact refuses legacy Nadam, because it decays the slots of rows without a
/// gradient, but does not move these rows. Its `decay` becomes schedule_decay.
/// clipvalue limits the sum over duplicates.
/// Errors:  c10::ValueError naming the class, option or key, and what to do.
/// Source:  tfrs.layers.embedding.TPUEmbedding (kTpu); keras.optimizers.
/// Differs: kTpu takes the new optimizers of Keras as well, which upstream
///          refuses for reasons of TensorFlow.
OptimizerSpec translate_keras_optimizer(
    const Json& config,
    Fidelity fidelity = Fidelity::kTpu);
OptimizerSpec translate_keras_optimizer(
    const nlohmann::json& config,
    Fidelity fidelity = Fidelity::kTpu);

/// The same as text, or a name: sgd, adagrad, adam, ftrl, rmsprop, adadelta,
/// lion, adamax and nadam are the native specs with their defaults, whatever the
/// fidelity.
OptimizerSpec translate_keras_optimizer(
    const std::string& text,
    Fidelity fidelity = Fidelity::kTpu);
OptimizerSpec translate_keras_optimizer(
    const char* text,
    Fidelity fidelity = Fidelity::kTpu);

/// What keras.optimizers.deserialize of Keras 3 reads.
///
/// Translating it back gives an equal spec, with Fidelity::kLazy for a lazy one
/// and kExact otherwise.
/// Errors:  c10::ValueError naming what Keras 3 has no counterpart for: a rule,
///          a formula (Adagrad's epsilon outside the root), a common option.
Json to_keras(const OptimizerSpec& optimizer);

}  // namespace optim

}  // namespace tessera
