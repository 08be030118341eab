// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/table_update.h"

#include <functional>
#include <vector>

namespace tessera {

/// While an observer exists, `before_update` sees the updates of tables on this thread,
/// before they change rows. Updates of a CustomOptimizer are not among them. The function
/// must not raise errors and must not call a layer. If observers are nested, only the
/// innermost one is called.
class UpdateObserver {
 public:
  using BeforeUpdate = std::function<void(const std::vector<TableUpdate>&)>;

  explicit UpdateObserver(BeforeUpdate before_update);
  ~UpdateObserver();
  UpdateObserver(const UpdateObserver&) = delete;
  UpdateObserver& operator=(const UpdateObserver&) = delete;

  /// TableStore::apply_update() calls it.
  static void notify(const std::vector<TableUpdate>& updates);

 private:
  BeforeUpdate before_update_;
  UpdateObserver* outer_;
};

}  // namespace tessera
