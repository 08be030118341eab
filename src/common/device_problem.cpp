// SPDX-License-Identifier: Apache-2.0
#include "src/common/device_problem.h"

#include "src/common/error_reason.h"

#include <tessera/common/shorten.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace tessera {

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
