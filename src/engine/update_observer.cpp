// SPDX-License-Identifier: Apache-2.0
#include "src/engine/update_observer.h"

#include <utility>

namespace tessera {

namespace {

thread_local UpdateObserver* observer = nullptr;

}  // namespace

UpdateObserver::UpdateObserver(BeforeUpdate before_update)
    : before_update_(std::move(before_update)),
      outer_(std::exchange(observer, this)) {}

UpdateObserver::~UpdateObserver() {
  observer = outer_;
}

void UpdateObserver::notify(const std::vector<TableUpdate>& updates) {
  if (observer != nullptr) {
    observer->before_update_(updates);
  }
}

}  // namespace tessera
