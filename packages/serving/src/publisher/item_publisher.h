// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>
#include <tessera/serving/publisher.h>

#include "packages/search/src/given_items.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "packages/serving/src/publisher/published_model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::serving {

/// The part of a Publisher that writes PublishOptions::items.
class ItemPublisher {
 public:
  /// `options` stay in memory.
  /// Errors:  c10::ValueError for items that do not fit the other options or the model.
  ItemPublisher(const PublishOptions& options, const PublishedModel& model);
  ItemPublisher(const ItemPublisher&) = delete;
  ItemPublisher& operator=(const ItemPublisher&) = delete;

  /// True if the next version gets new items. Otherwise it keeps those of the last version.
  bool is_due() const {
    return num_to_keep_ == 0;
  }
  /// Takes what PublishedItems::items and users have given for the next version.
  /// Errors:  c10::ValueError for what a version can't have.
  void take(const RecommenderItems& given, const at::Tensor& users);
  /// Takes the items of the last version for the next one.
  void keep();
  /// True if other items, or tables of other sizes, were taken than the last version has.
  bool needs_base() const {
    return needs_base_;
  }
  /// The bytes of all rows, or of those that differ from the last version.
  int64_t bytes(bool is_base) const;
  /// Adds these rows, and the files of a base.
  /// Errors:  c10::ValueError for a wrong result of PublishedItems::seen.
  void add(bool is_base, VersionContent& content) const;
  /// Called when this version is written.
  void accept();

 private:
  struct Table {
    TableFile file = {};
    at::Tensor values = {};  // [rows, dim] float32
    std::vector<uint32_t> changed = {};  // rows, ascending
  };
  struct Content {
    std::vector<int64_t> ids = {};
    std::vector<Table> tables = {};
  };

  void add_table(const char* name, at::Tensor values, RowFormat format);
  void compare();
  std::string seen_items() const;

  const PublishedItems& options_;
  std::optional<data::FeaturePipeline> pipeline_;
  GivenItems given_;
  std::string attributes_;
  std::optional<Pt2Value>
      query_;  // the vectors that PublishedItems::query gives
  Content taken_;
  Content written_;  // in the last version
  bool needs_base_ = true;
  int64_t num_to_keep_ = 0;  // versions before the next new items
};

}  // namespace tessera::serving
