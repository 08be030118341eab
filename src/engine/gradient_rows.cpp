// SPDX-License-Identifier: Apache-2.0
#include "src/engine/gradient_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace tessera {

GradientRows::GradientRows(at::Tensor table) : table_(std::move(table)) {}

bool GradientRows::was_zeroed() const {
  const at::Tensor& gradient = table_.grad();
  if (!gradient.defined()) {
    return true;
  }
  const bool is_unchanged = gradient.unsafeGetTensorImpl() == last_gradient_ &&
      static_cast<int64_t>(gradient._version()) == last_version_;
  return !is_unchanged && !gradient.any().item<bool>();
}

void GradientRows::mark_touched(const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass != last_pass_) {
    last_pass_ = pass;
    if (!is_touched_.defined() || was_zeroed()) {
      is_touched_ = at::zeros({table_.size(0)}, at::kBool);
    }
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] {
          const at::Tensor& gradient = self->table_.grad();
          self->last_gradient_ = gradient.unsafeGetTensorImpl();
          self->last_version_ = gradient.defined()
              ? static_cast<int64_t>(gradient._version())
              : 0;
        });
  }
  is_touched_.index_fill_(0, rows, true);
}

at::Tensor GradientRows::touched() const {
  const at::NoGradGuard no_grad;
  at::Tensor is_touched = (table_.grad() != 0).any(1);
  if (is_touched_.defined()) {
    is_touched = is_touched.logical_or(is_touched_);
  }
  return is_touched.nonzero().view({-1});
}

}  // namespace tessera
