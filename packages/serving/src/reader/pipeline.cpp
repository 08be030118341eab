// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/pipeline.h>

#include "packages/data/src/pipeline_core.h"

#include <algorithm>
#include <span>

namespace tessera::serving {

namespace {

static_assert(kMissing == data::kMissing);

data::ColumnView view_of(const RawColumns::Column& column) {
  data::ColumnView view;
  std::visit(
      [&]<class T>(const std::vector<T>& values) {
        view.values = std::span<const T>(values);
      },
      column.values);
  view.row_splits = column.row_splits;
  return view;
}

// PipelineColumn::Type begins with the types of data::ColumnType, in the same order.
static_assert(
    static_cast<int>(data::ColumnType::kUInt64Bits) ==
    static_cast<int>(PipelineColumn::Type::kUInt64Bits));

// The result of a pipeline as vectors. The functions of IdsMemory serve the feature of the
// last make_feature().
class ResultMemory final : public data::PipelineMemory, public data::IdsMemory {
 public:
  explicit ResultMemory(PipelineResult& result) : result_(result) {}

  float* make_dense() override {
    result_.dense.resize(result_.batch_size * result_.num_dense);
    return result_.dense.data();
  }
  data::IdsMemory& make_feature(const data::PipelineOutput& output) override {
    feature_ = &result_.features[output.name];
    return *this;
  }

  std::span<int64_t> make_ids(size_t size) override {
    feature_->ids.resize(size);
    return feature_->ids;
  }
  void shrink_ids(size_t size) override {
    feature_->ids.resize(size);
  }
  std::span<int64_t> make_row_splits(size_t size) override {
    feature_->row_splits.resize(size);
    return feature_->row_splits;
  }

 private:
  PipelineResult& result_;
  IdLists* feature_ = nullptr;
};

PipelineResult run(
    const data::PipelineCore& core,
    const RawColumns& columns,
    bool is_partial) {
  data::PipelineInputs inputs = core.make_inputs(columns.entries(), view_of);
  inputs.is_partial = is_partial;
  PipelineResult result{
      .batch_size = columns.batch_size(), .num_dense = core.num_dense()};
  ResultMemory memory(result);
  result.warning = core.apply(inputs, memory);
  return result;
}

}  // namespace

struct Pipeline::State {
  explicit State(data::PipelineDefinition definition)
      : core(
            std::move(definition.outputs),
            std::move(definition.types),
            /*is_from_file=*/true) {}

  data::PipelineCore core;
};

void RawColumns::add(std::string name, Column column) {
  const data::ColumnView view = view_of(column);
  if (view.row_splits) {
    data::check_row_splits(*view.row_splits, std::ssize(view), name);
  }
  data::check_added_column(
      name,
      find(name) != nullptr,
      entries_.empty() ? std::nullopt : std::optional(batch_size()),
      view.batch_size());
  entries_.emplace_back(std::move(name), std::move(column));
}

const RawColumns::Column* RawColumns::find(std::string_view name) const& {
  const auto found = std::ranges::find(entries_, name, &Entry::first);
  return found == entries_.end() ? nullptr : &found->second;
}

int64_t RawColumns::batch_size() const {
  return entries_.empty() ? 0 : view_of(entries_.front().second).batch_size();
}

Pipeline::Pipeline(std::shared_ptr<const State> state)
    : state_(std::move(state)) {}

Pipeline Pipeline::load(const std::string& path) {
  return data::read_pipeline_file(path, [](const Json& json) {
    return Pipeline(std::make_shared<const State>(data::read_pipeline(json)));
  });
}

Pipeline Pipeline::from_json_text(std::string_view text) {
  const Json json =
      parse_json(text, "[Pipeline::from_json_text]", data::kPipelineLimits);
  return Pipeline(std::make_shared<const State>(data::read_pipeline(json)));
}

PipelineResult Pipeline::apply(const RawColumns& columns) const {
  return run(state_->core, columns, /*is_partial=*/false);
}

PipelineResult Pipeline::apply_present(const RawColumns& columns) const {
  return run(state_->core, columns, /*is_partial=*/true);
}

const data::PipelineCore& Pipeline::core() const& {
  return state_->core;
}

std::vector<PipelineColumn> Pipeline::columns() const {
  const std::map<std::string, data::ColumnType> types = state_->core.types();
  std::vector<PipelineColumn> columns;
  for (const data::ColumnUse& use : state_->core.columns()) {
    const auto known = types.find(use.name);
    columns.push_back(
        {.name = use.name,
         .type = known != types.end()
             ? static_cast<PipelineColumn::Type>(known->second)
             : use.readable.floats ? PipelineColumn::Type::kNumbers
                                   : PipelineColumn::Type::kUnknown,
         .takes_lists = use.readable.lists});
  }
  return columns;
}

std::vector<std::string> Pipeline::feature_names() const {
  std::vector<std::string> names;
  for (const data::PipelineOutput& output : state_->core.outputs()) {
    if (!data::gives_numbers(output.transform)) {
      names.push_back(output.name);
    }
  }
  return names;
}

int64_t Pipeline::num_dense() const {
  return state_->core.num_dense();
}

}  // namespace tessera::serving
