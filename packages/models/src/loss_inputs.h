// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/models/retrieval.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// Errors:  c10::ValueError beginning with `where` unless `temperature` is > 0 and finite.
void check_temperature(double temperature, const std::string& where);

/// Errors:  c10::ValueError or TypeError beginning with `where` unless `scores` is a dense
///          tensor of floats with `dim` dimensions, which `shape` describes.
void check_loss_scores(
    const at::Tensor& scores,
    const char* name,
    int64_t dim,
    const char* shape,
    const std::string& where);

/// Errors:  c10::ValueError beginning with `where` unless `values` is dense, of this shape
///          and on the device of `scores`.
void check_loss_values(
    const at::Tensor& values,
    const char* name,
    const at::Tensor& scores,
    at::IntArrayRef shape,
    const std::string& where);

/// Errors:  c10::TypeError beginning with `where` unless `values` are floats.
void check_loss_floats(
    const at::Tensor& values,
    const char* name,
    const std::string& where);

/// Checks `weights` like check_loss_values().
/// Errors:  those of check_loss_values(); c10::TypeError for weights that are not
///          floats, c10::ValueError for weights that are < 0 or not finite.
void check_loss_weights(
    const at::Tensor& weights,
    const char* name,
    const at::Tensor& scores,
    at::IntArrayRef shape,
    const std::string& where);

/// log(1 + exp(x)). at::softplus() returns x above a threshold, which is not exact.
at::Tensor stable_softplus(const at::Tensor& x);

/// Multiplies losses by their weights, if any, and reduces them to a scalar, which is
/// 0 without losses.
at::Tensor reduce_losses(
    const at::Tensor& losses,
    const at::Tensor& weights,
    LossReduction reduction);

}  // namespace tessera
