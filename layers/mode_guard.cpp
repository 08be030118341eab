// SPDX-License-Identifier: Apache-2.0
#include "layers/mode_guard.h"

namespace tessera {

ModeGuard::ModeGuard(torch::nn::Module& model) {
  for (const auto& part : model.modules()) {
    modes_.emplace_back(part, part->is_training());
  }
}

ModeGuard::~ModeGuard() {
  restore();
}

void ModeGuard::eval() const {
  modes_[0].first->eval();  // the model
}

void ModeGuard::train() const {
  const auto& [model, was_training] = modes_[0];
  if (was_training) {
    restore();
  } else {
    model->train();
  }
}

void ModeGuard::restore() const {
  // Parents come first, because train() also sets the mode of the children.
  for (const auto& [part, mode] : modes_) {
    part->train(mode);
  }
}

}  // namespace tessera
