// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything, with LibTorch's own umbrella header (half a minute to compile).

#include <tessera/embedding_engine.h>
#include <tessera/embedding_tables.h>
#include <tessera/feature.h>
#include <tessera/feature_config.h>
#include <tessera/initializer.h>
#include <tessera/layers/combined.h>
#include <tessera/layers/concatenate.h>
#include <tessera/layers/dense_parameters.h>
#include <tessera/layers/export_torchscript.h>
#include <tessera/layers/layer_optimizer.h>
#include <tessera/layers/prefetch.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/layers/training/batch_source.h>
#include <tessera/layers/training/callback.h>
#include <tessera/layers/training/checkpoint.h>
#include <tessera/layers/training/early_stopping.h>
#include <tessera/layers/training/fit.h>
#include <tessera/layers/training/history.h>
#include <tessera/layers/training/history_files.h>
#include <tessera/layers/training/learning_curves.h>
#include <tessera/layers/training/learning_rate_log.h>
#include <tessera/layers/training/metrics.h>
#include <tessera/layers/training/progress_bar.h>
#include <tessera/layers/training/terminate_on_non_finite.h>
#include <tessera/layers/training/train_step.h>
#include <tessera/nest.h>
#include <tessera/optim/keras.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/make_optimizer.h>
#include <tessera/optim/optimizer.h>
#include <tessera/partial_shape.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/serialization/config_json.h>
#include <tessera/serialization/saved_features.h>
#include <tessera/serialization/tensor_files.h>
#include <tessera/serving_lookup.h>
#include <tessera/sharding.h>
#include <tessera/sharding_plan.h>
#include <tessera/strategy.h>
#include <tessera/table_config.h>
#include <torch/torch.h>
