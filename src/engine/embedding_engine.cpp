// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/embedding_engine.h>

#include <tessera/common/profile_scope.h>

#include "src/common/check.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/batch_queue.h"
#include "src/engine/embedding_state.h"
#include "src/engine/forward_interception.h"
#include "src/engine/serving_lookup.h"
#include "src/engine/table_store.h"
#include "src/engine/table_summary.h"
#include "src/features/batch.h"
#include "src/features/output_shapes.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using Activations = std::vector<at::Tensor>;

void validate(const EmbeddingEngineOptions& options) {
  const auto require = [](bool holds, const char* what, int64_t got) {
    TESSERA_CHECK_VALUE(
        holds,
        "[EmbeddingEngineOptions] {}, but got {}. Correct the option.",
        what,
        got);
  };
  constexpr int64_t kMaxReplicas = 65536;
  require(
      options.replicas >= 1 && options.replicas <= kMaxReplicas,
      "replicas must be in [1, 65536]",
      options.replicas);
  TESSERA_CHECK_VALUE(
      options.verify_output_shapes || !options.fixed_batch_size,
      "[EmbeddingEngineOptions] fixed_batch_size = true needs verify_output_shapes = true, which checks the batch sizes, but got false. Change one of them.");
  require(
      options.queue_depth >= 1,
      "queue_depth must be >= 1",
      options.queue_depth);
  check_lookup_threads(options.lookup_threads, "[EmbeddingEngineOptions]");
  require(
      options.timeout.count() > 0,
      "timeout must be > 0 ms",
      options.timeout.count());
}

std::shared_ptr<EmbeddingState> make_engine_state(
    const EmbeddingEngineOptions& options) {
  validate(options);
  auto state = std::make_shared<EmbeddingState>(make_state(
      options.features,
      options.optimizer,
      options.seed,
      WithSlots::kYes,
      "[EmbeddingEngineOptions]",
      /*shards=*/{},
      options.check_memory));
  state->fixed_batch_size = options.fixed_batch_size;
  state->missing_slots = options.missing_slots;
  state->non_finite_gradients = options.non_finite_gradients;
  for (FeatureState& feature : state->features) {
    feature.verifies_shape = options.verify_output_shapes;
  }
  return state;
}

// Counts the calls of an engine's public members and refuses calls after shutdown(). It
// also has the lock and the condition variable that these calls share.
class CallGate {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `timeout`: the longest time that wait() waits.
  explicit CallGate(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Counts as a running call of a public member while the result lives.
  // Errors:  c10::Error within an update, and after shutdown().
  [[nodiscard]] auto begin_call() {
    check_not_updating();
    const Lock lock(mutex_);
    check_open();
    ++calls_;
    return c10::make_scope_exit([this] {
      // Notifies under the lock, because the gate may be destroyed once the lock is free.
      const Lock ending(mutex_);
      --calls_;
      changed_.notify_all();
    });
  }

  // While the result lives, this thread counts as the one that updates the tables. Calls
  // that it makes meanwhile are refused.
  [[nodiscard]] auto begin_update() {
    updating_thread_ = std::this_thread::get_id();
    return c10::make_scope_exit(
        [this] { updating_thread_ = std::thread::id(); });
  }

  [[nodiscard]] Lock lock() {
    return Lock(mutex_);
  }
  void notify_all() {
    changed_.notify_all();
  }

  // Waits until is_done() returns true.
  // Errors:  c10::Error after shutdown(); c10::Error with the text of problem() after the
  //          timeout.
  void wait(
      Lock& lock,
      c10::function_ref<bool()> is_done,
      c10::function_ref<std::string()> problem) {
    constexpr auto kMaxTimeout = std::chrono::hours(24 * 365);
    const auto timeout =
        std::min<std::chrono::milliseconds>(timeout_, kMaxTimeout);
    const bool is_done_in_time = changed_.wait_for(
        lock, timeout, [&] { return is_shut_down_ || is_done(); });
    check_open();
    TESSERA_CHECK(
        is_done_in_time,
        "{} Waited for {} ms (EmbeddingEngineOptions::timeout).",
        problem(),
        timeout_.count());
  }

  // Errors:  c10::Error if this thread is within an update, which holds the lock.
  void check_not_updating() const {
    TESSERA_CHECK(
        updating_thread_ != std::this_thread::get_id(),
        "[EmbeddingEngine] expected no call of the engine within its own update or checkpoint, but a learning rate, a custom rule or CheckpointOptions::extra has made one. Call the engine before or after.");
  }

  // Makes all waiting calls and all later calls raise an error.
  void shutdown() {
    {
      const Lock lock(mutex_);
      is_shut_down_ = true;
    }
    changed_.notify_all();
  }
  // Calls shutdown() and waits until no call runs.
  void shutdown_and_wait() {
    shutdown();
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_ == 0; });
  }

  bool is_shut_down() {
    const Lock lock(mutex_);
    return is_shut_down_;
  }

  // Whether no call runs. Returns false, and does not wait, if the lock is taken. In a
  // forked child, a call that another thread of the parent was running never ends.
  bool is_idle() {
    const Lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && calls_ == 0;
  }

 private:
  void check_open() const {
    TESSERA_CHECK(
        !is_shut_down_,
        "[EmbeddingEngine] expected a running engine, but it has been shut down. Construct another one.");
  }

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t calls_ = 0;
  bool is_shut_down_ = false;
  std::atomic<std::thread::id> updating_thread_ = std::thread::id();
};

void check_not_intercepted(const char* where, const char* rule) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      ForwardInterception::current() == nullptr,
      "[{}] the forward() of a model that is exported {}. Remove this call from it.",
      where,
      rule);
}

// The gradient as it is kept until all replicas have passed theirs. A single replica
// needs no copy.
at::Tensor detached(const at::Tensor& gradient, int64_t replicas) {
  if (!gradient.defined()) {
    return {};
  }
  return replicas > 1 ? gradient.detach().clone() : gradient.detach();
}

std::vector<at::Tensor> gradients_of_activations(
    const BatchSlice& slice,
    const std::string& name,
    size_t features,
    int64_t replicas) {
  TESSERA_CHECK_VALUE(
      slice.activations->size() == features,
      "[apply_gradients] expected the batch {} with its activations, but its dequeue() has not returned yet, or has failed. Call backward() on the activations that it returns first, or drop() the batch.",
      quoted_batch_name(name));
  std::vector<at::Tensor> gradients;
  bool needs_gradient = false;
  bool has_gradient = false;
  for (const at::Tensor& activation : *slice.activations) {
    gradients.push_back(detached(activation.grad(), replicas));
    needs_gradient = needs_gradient || activation.requires_grad();
    has_gradient = has_gradient || activation.grad().defined();
  }
  TESSERA_CHECK_VALUE(
      has_gradient || !needs_gradient,
      "[apply_gradients] no activation of the batch {} has a gradient. First call backward() on a loss of the activations that dequeue() returned. Otherwise pass gradients, or drop() the batch.",
      quoted_batch_name(name));
  return gradients;
}

void check_replica(const char* where, int64_t replica, int64_t replicas) {
  TESSERA_CHECK_INDEX(
      replica >= 0 && replica < replicas,
      "[{}] replica must be in [0, {}), but got {}. Correct it, or set EmbeddingEngineOptions::replicas.",
      where,
      replicas,
      replica);
}

// Activations of trainable tables become leaves that require a gradient.
void make_leaves(const EmbeddingState& state, Activations& activations) {
  for (size_t i = 0; i < activations.size(); ++i) {
    const TableState& table = state.tables[state.features[i].table];
    activations[i].requires_grad_(table.config->trainable);
  }
}

}  // namespace

class EmbeddingEngine::Impl {
 public:
  explicit Impl(EmbeddingEngineOptions options)
      : Impl(options, make_engine_state(options)) {}

  Impl(EmbeddingEngineOptions options, std::shared_ptr<EmbeddingState> state)
      : options_(std::move(options)),
        state_(std::move(state)),
        gate_(options_.timeout),
        queue_(options_.replicas, options_.queue_depth),
        store_(state_, options_.lookup_threads) {}

  // A call of another thread that was running at a fork never ends in the child.
  bool can_be_destroyed() {
    return owner_.is_this_process() || gate_.is_idle();
  }

  ~Impl() {
    gate_.shutdown_and_wait();  // before any member is destroyed
  }

  // Runs `build`, which fixes output shapes.
  void build(c10::function_ref<void(EmbeddingState&)> build) {
    const auto call = gate_.begin_call();
    const std::lock_guard<std::shared_mutex> lock(shapes_mutex_);
    build(*state_);
    is_ready_ = true;
  }

  void enqueue(
      const Features& features,
      const Weights& weights,
      const EnqueueOptions& options) {
    const auto call = gate_.begin_call();
    check_replica("enqueue", options.replica, options_.replicas);
    Batch batch = read(features, weights);
    const std::vector<int64_t> ragged_rows = batch.ragged_rows();
    int64_t zero_rows = 0;
    for (IdBags& bags : batch.bags) {
      zero_rows += bags.zero_rows;
      drop_zero_rows(bags);
    }
    CallGate::Lock lock = gate_.lock();
    gate_.wait(
        lock,
        [&] {
          return queue_.may_enqueue(
              options.name, options.training, options.replica);
        },
        [&] { return queue_.why_not_enqueue(options.name, options.replica); });
    set_ragged_rows(*state_, ragged_rows);
    BatchSlice& slice =
        queue_.enqueue(options.name, options.training, options.replica);
    slice.bags = std::make_shared<std::vector<IdBags>>(std::move(batch.bags));
    state_->out_of_range_count += zero_rows;
    start_lookups();
    gate_.notify_all();
  }

  Nest<at::Tensor> dequeue(const std::string& name, int64_t replica) {
    const auto call = gate_.begin_call();
    check_replica("dequeue", replica, options_.replicas);
    check_ready("dequeue");
    CallGate::Lock lock = gate_.lock();
    bool was_seen = false;
    gate_.wait(
        lock,
        [&] {
          const QueuedBatch* batch = queue_.find_to_dequeue(name, replica);
          if (batch == nullptr) {
            return was_seen;
          }
          was_seen = !name.empty();
          return may_be_dequeued(*batch, replica);
        },
        [&] { return queue_.why_not_dequeue(name, replica); });
    QueuedBatch* batch = queue_.find_to_dequeue(name, replica);
    TESSERA_CHECK(
        batch != nullptr,
        "[dequeue] the batch {} was dropped while dequeue() waited for it. Enqueue it again.",
        quoted_batch_name(name));
    BatchSlice& slice = batch->slices[replica];
    slice.is_dequeued = true;
    const auto bags = slice.bags;
    const UnknownKeys unknown =
        batch->is_training ? UnknownKeys::kAdmitted : UnknownKeys::kZeros;
    const auto lookup = std::exchange(slice.lookup, {});
    // Shared, because the batch may be dropped while the lookup runs.
    std::shared_ptr<Activations> leaves;
    if (batch->is_training) {
      warn_about_open_batches(replica);
      leaves = slice.activations = std::make_shared<Activations>();
      slice.dequeued_by = std::this_thread::get_id();
    } else if (batch->is_done()) {
      queue_.erase(*batch);
    }
    gate_.notify_all();
    lock.unlock();
    Activations activations = lookup.valid()
        ? Activations(lookup.get())
        : store_.lookup_local(*bags, unknown);
    if (leaves != nullptr) {
      make_leaves(*state_, activations);
      lock.lock();
      *leaves = activations;
      lock.unlock();
    }
    return options_.features.pack(std::move(activations));
  }

  void apply_gradients(
      const Nest<at::Tensor>& gradients,
      const std::string& name,
      int64_t replica) {
    const auto call = gate_.begin_call();
    check_replica("apply_gradients", replica, options_.replicas);
    check_ready("apply_gradients");
    std::vector<at::Tensor> flat;
    if (!gradients.empty()) {
      for (const at::Tensor* gradient :
           leaves_like(options_.features, gradients, "gradients")) {
        flat.push_back(detached(*gradient, options_.replicas));
      }
    }
    const CallGate::Lock lock = gate_.lock();
    QueuedBatch& batch = queue_.find_to_train(name, replica);
    BatchSlice& slice = batch.slices[replica];
    if (gradients.empty()) {
      flat = gradients_of_activations(
          slice, name, state_->features.size(), options_.replicas);
    }
    store_.check({.bags = slice.bags.get(), .gradients = flat});
    slice.gradients = std::move(flat);
    if (batch.is_done()) {
      try {
        update(batch);
      } catch (...) {
        slice.gradients.clear();
        throw;
      }
      queue_.erase(batch);
      start_lookups();
    } else {
      slice.activations = nullptr;
    }
    gate_.notify_all();
  }

  // Makes a copy without batches.
  std::unique_ptr<Impl> copy() {
    std::unique_ptr<Impl> copy;
    change_state([&](EmbeddingState& state) {
      const std::shared_lock<std::shared_mutex> lock(shapes_mutex_);
      copy = std::make_unique<Impl>(
          options_, std::make_shared<EmbeddingState>(deep_copy(state)));
      copy->is_ready_ = is_ready_.load();
      copy->iterations_ = updates_applied(state);
    });
    return copy;
  }

  void change_state(c10::function_ref<void(EmbeddingState&)> change) {
    const auto call = gate_.begin_call();
    const CallGate::Lock lock = gate_.lock();
    const auto writing = store_.lock_for_writing();
    const auto updating = gate_.begin_update();
    const auto update_iterations =
        c10::make_scope_exit([&] { iterations_ = updates_applied(*state_); });
    change(*state_);
  }

 private:
  friend class EmbeddingEngine;

  void check_ready(const char* where) const {
    TESSERA_CHECK(
        is_ready_,
        "[{}] called on an unbuilt engine. Call enqueue() or build() first.",
        where);
  }

  // Warns once that the activations of many open batches stay in memory.
  void warn_about_open_batches(int64_t replica) {
    constexpr int64_t kManyBatches = 32;
    const int64_t open = queue_.num_open(replica);
    if (open <= kManyBatches || std::exchange(has_warned_, true)) {
      return;
    }
    TORCH_WARN(fmt::format(
        "[dequeue] {} training batches of replica {} were dequeued, but have no gradients, and the engine keeps their activations. Call apply_gradients() or drop() for each of them, or enqueue them with training = false. This warning is given once.",
        open,
        replica));
  }

  Batch read(const Features& features, const Weights& weights) {
    Batch batch;
    const auto read_it = [&] {
      const ProfileScope scope("tessera::read_batch");
      batch =
          read_batch(options_.features, state_->features, features, weights);
    };
    {
      // Once the shapes are known, several threads can read at the same time.
      const std::shared_lock<std::shared_mutex> lock(shapes_mutex_);
      if (state_->is_built) {
        read_it();
        return batch;
      }
    }
    const std::lock_guard<std::shared_mutex> lock(shapes_mutex_);
    TESSERA_CHECK(
        state_->is_built || options_.verify_output_shapes,
        "[enqueue] with verify_output_shapes = false, the engine does not learn output shapes from the first batch, but it is unbuilt. Call build() with input shapes or a batch size first.");
    read_it();
    if (!state_->is_built) {
      build_output_shapes_from_batch(*state_, batch.bags);
      is_ready_ = true;
    }
    return batch;
  }

  bool is_prefetched(const QueuedBatch& batch) const {
    return batch.is_training && options_.pipelining == Pipelining::kOn;
  }

  bool may_be_dequeued(const QueuedBatch& batch, int64_t replica) const {
    return is_prefetched(batch)
        ? batch.slices[replica].lookup.valid()
        : queue_.find_partly_updated(replica) == nullptr;
  }

  // Submits the lookups that may run now: those of the two oldest unfinished training
  // batches, unless the replica has passed gradients for an update that still waits for
  // other replicas. So the rows that a lookup sees depend only on the order of calls.
  void start_lookups() {
    int64_t unfinished = 0;
    for (QueuedBatch& batch : queue_.batches()) {
      if (!is_prefetched(batch)) {
        continue;
      }
      if (unfinished++ > 1) {
        return;
      }
      for (int64_t replica = 0; replica < options_.replicas; ++replica) {
        BatchSlice& slice = batch.slices[replica];
        if (slice.is_enqueued && !slice.is_dequeued && !slice.lookup.valid() &&
            queue_.find_partly_updated(replica) == nullptr) {
          slice.lookup = store_.worker().submit([this, bags = slice.bags] {
            return store_.lookup_local(*bags, UnknownKeys::kAdmitted);
          });
        }
      }
    }
  }

  void update(const QueuedBatch& batch) {
    const ProfileScope scope("tessera::update");
    std::vector<LookupGradients> lookups;
    for (const BatchSlice& slice : batch.slices) {
      lookups.push_back(
          {.bags = slice.bags.get(), .gradients = slice.gradients});
    }
    const auto updating = gate_.begin_update();
    store_.apply_update(store_.plan_update(lookups));
    iterations_ = updates_applied(*state_);
  }

  const EmbeddingEngineOptions options_;
  const std::shared_ptr<EmbeddingState> state_;

  std::shared_mutex shapes_mutex_;  // output shapes in state_
  ThreadOwner owner_;
  std::atomic<bool> is_ready_ = false;

  CallGate gate_;  // its lock guards the queue
  BatchQueue queue_;
  bool has_warned_ = false;  // about open batches
  std::atomic<int64_t> iterations_ = 0;
  TableStore store_;  // the last member: its worker uses the others
};

EmbeddingEngine::EmbeddingEngine(EmbeddingEngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

EmbeddingEngine::EmbeddingEngine(const EmbeddingEngine& source, Copy)
    : impl_(source.impl_->copy()) {}

EmbeddingEngine::~EmbeddingEngine() {
  if (impl_ != nullptr && !impl_->can_be_destroyed()) {
    (void)impl_.release();  // The child's memory goes with its process.
  }
}

void EmbeddingEngine::copy_from(const EmbeddingEngine& source) {
  impl_ = source.impl_->copy();
}

void EmbeddingEngine::build() {
  impl_->build([](EmbeddingState&) {});
}

void EmbeddingEngine::build(int64_t batch_size) {
  impl_->build([&](EmbeddingState& state) {
    const Nest<FeatureConfig>& features = options().features;
    build_output_shapes(
        state, features, input_shapes_of(state, features, batch_size));
  });
}

void EmbeddingEngine::build(const Nest<PartialShape>& input_shapes) {
  impl_->build([&](EmbeddingState& state) {
    build_output_shapes(state, options().features, input_shapes);
  });
}

void EmbeddingEngine::enqueue(
    const Features& features,
    const Weights& weights,
    const EnqueueOptions& options) {
  if (auto* interception = ForwardInterception::current()) {
    interception->enqueue(
        {.state = impl_->state_.get(),
         .name = options.name,
         .replica = options.replica,
         .features = features,
         .weights = weights});
    return;
  }
  impl_->enqueue(features, weights, options);
}

Nest<at::Tensor> EmbeddingEngine::dequeue(
    const std::string& name,
    int64_t replica) {
  if (auto* interception = ForwardInterception::current()) {
    const auto batch = interception->dequeue(*impl_->state_, name, replica);
    return interception->handle(
        *impl_->state_, options().features, batch.features, batch.weights);
  }
  return impl_->dequeue(name, replica);
}

void EmbeddingEngine::apply_gradients(
    const Nest<at::Tensor>& gradients,
    const std::string& name,
    int64_t replica) {
  check_not_intercepted("apply_gradients", "must not train");
  impl_->apply_gradients(gradients, name, replica);
}

void EmbeddingEngine::drop(const std::string& name) {
  check_not_intercepted("drop", "must dequeue what it enqueues");
  const auto call = impl_->gate_.begin_call();
  const CallGate::Lock lock = impl_->gate_.lock();
  impl_->queue_.erase(impl_->queue_.find_to_drop(name));
  impl_->start_lookups();
  impl_->gate_.notify_all();
}

Nest<at::Tensor> EmbeddingEngine::embedding_lookup(
    const Features& features,
    const Weights& weights) const {
  if (auto* interception = ForwardInterception::current()) {
    return interception->handle_lookup(
        *impl_->state_, options().features, features, weights);
  }
  return embedding_lookup(features, weights, options().features);
}

Nest<at::Tensor> EmbeddingEngine::embedding_lookup(
    const Features& features,
    const Weights& weights,
    const Nest<FeatureConfig>& serving_config) const {
  check_not_intercepted(
      "embedding_lookup",
      "must look up by the engine's own feature configs, without a "
      "serving_config");
  const auto call = impl_->gate_.begin_call();
  const auto reading = impl_->store_.lock_for_reading();
  return lookup_for_serving(*impl_->state_, features, weights, serving_config);
}

std::string EmbeddingEngine::summary() const {
  const auto reading = impl_->store_.lock_for_reading();
  return summary_of(*impl_->state_, class_name());
}

at::Tensor EmbeddingEngine::read_rows(
    const std::string& name,
    int64_t begin,
    int64_t end) const {
  const auto call = impl_->gate_.begin_call();
  const auto reading = impl_->store_.lock_for_reading();
  return tessera::read_rows(*impl_->state_, name, begin, end);
}

int64_t EmbeddingEngine::iterations() const {
  return impl_->iterations_;
}

int64_t EmbeddingEngine::out_of_range_count() const {
  return impl_->state_->out_of_range_count;
}

const EmbeddingEngineOptions& EmbeddingEngine::options() const& {
  return impl_->options_;
}

void EmbeddingEngine::visit_state(
    c10::function_ref<void(const EmbeddingState&)> visit) const {
  const auto call = impl_->gate_.begin_call();
  const std::shared_lock<std::shared_mutex> lock(impl_->shapes_mutex_);
  visit(*impl_->state_);
}

void EmbeddingEngine::read_state(
    c10::function_ref<void(const EmbeddingState&)> read) const {
  impl_->change_state([&](EmbeddingState& state) { read(state); });
}

const EmbeddingState& EmbeddingEngine::state() const {
  return *impl_->state_;
}

void EmbeddingEngine::wait_for_lookups() const {
  read_state([](const EmbeddingState&) {});
}

bool EmbeddingEngine::has_batch_without_gradients() const {
  const CallGate::Lock lock = impl_->gate_.lock();
  const auto waits = [](const BatchSlice& slice) {
    return slice.is_dequeued && slice.gradients.empty() &&
        slice.dequeued_by == std::this_thread::get_id();
  };
  const auto has_waiting_slice = [&](const QueuedBatch& batch) {
    return batch.is_training && std::ranges::any_of(batch.slices, waits);
  };
  return std::ranges::any_of(impl_->queue_.batches(), has_waiting_slice);
}

bool EmbeddingEngine::is_shut_down() const {
  return impl_->gate_.is_shut_down();
}

void EmbeddingEngine::change_state(
    c10::function_ref<void(EmbeddingState&)> change) {
  impl_->change_state(change);
}

void EmbeddingEngine::shutdown() {
  impl_->gate_.check_not_updating();
  impl_->gate_.shutdown();
}

}  // namespace tessera
