// SPDX-License-Identifier: Apache-2.0
#include "src/common/tensor_text.h"

#include "src/common/check.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <tessera/common/shorten.h>

namespace tessera {

std::string describe(const at::TensorOptions& options, at::IntArrayRef sizes) {
  std::string text =
      c10::str(c10::typeMetaToScalarType(options.dtype()), " of shape ", sizes);
  if (options.layout() != at::kStrided) {
    text += c10::str(" in ", options.layout(), " layout");
  }
  if (!options.device().is_cpu()) {
    text += c10::str(" on ", options.device());
  }
  return text;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "no tensor";
  }
  std::string text = describe(tensor.options(), tensor.sizes());
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) {
    text += c10::str(" with strides ", tensor.strides());
  }
  if (tensor._is_zerotensor()) {
    text += " without memory";
  }
  if (tensor.is_neg()) {
    text += " as a negative view";
  }
  return text;
}

std::string device_problem(const c10::Device& device) {
  if (device.is_cpu()) {
    return "";
  }
  try {
    at::empty({0}, at::TensorOptions().device(device));
    return "";
  } catch (const c10::NotImplementedError&) {
    // The dispatcher's own text is a list of all backends.
    return "this LibTorch was built without it";
  } catch (const c10::Error& error) {
    return shorten(reason_of(error));
  }
}

}  // namespace tessera
