// SPDX-License-Identifier: Apache-2.0
// A training that is interrupted and resumed gives the same bits as one that is
// not interrupted.
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/training/checkpoint.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/history_files.h>

#include "packages/training/src/model_files.h"
#include "packages/training/src/training_state.h"
#include "packages/training/tests/training_fixture.h"
#include "tests/small_files.h"

#include <sys/wait.h>
#include <unistd.h>

namespace tessera::training::checkpoint_test {

constexpr int64_t kBatches = 5;
constexpr int64_t kEpochs = 3;

// The batches of an epoch, shuffled by LibTorch's random generator.
class Shuffled {
 public:
  explicit Shuffled(const std::vector<ClickBatch>& batches)
      : batches_(batches),
        order_(at::randperm(static_cast<int64_t>(batches.size()), at::kLong)) {}

  std::optional<ClickBatch> next() {
    if (i_ == order_.size(0)) {
      return std::nullopt;
    }
    return batches_[order_[i_++].item<int64_t>()];
  }

 private:
  const std::vector<ClickBatch>& batches_;
  at::Tensor order_;
  int64_t i_ = 0;
};

// The same with a skip() that counts the skipped batches.
struct Skipping : Shuffled {
  Skipping(const std::vector<ClickBatch>& batches, int64_t& skipped)
      : Shuffled(batches), skipped(skipped) {}
  void skip(int64_t count) {
    skipped += count;
    for (; count > 0; --count) {
      next();
    }
  }
  int64_t& skipped;
};

struct Case {
  int64_t layers = 1;
  TrainingCheckpointOptions options = {};
  bool has_early_stopping = false;
};

class Trainer {
 public:
  Trainer(const TemporaryFolder& folder, std::string name, Case options)
      : directory_(folder / (name + "_checkpoints")),
        csv_(folder / (name + ".csv")),
        case_(options) {}

  // Stops training after step `stop_after`, or throws there.
  enum class End { kStop, kThrow };
  History train(ClickRun& run, int64_t stop_after = -1, End end = End::kStop)
      const {
    const auto hooks = end == End::kThrow ? dying_after(stop_after)
                                          : stopping_after(stop_after);
    Callbacks callbacks{hooks, CsvHistory(csv_)};
    if (case_.has_early_stopping) {
      callbacks.push_back(std::make_shared<EarlyStopping>(EarlyStoppingOptions{
          .patience = 2,
          .better = Better::kHigher,
          .restore_best = run.model.ptr()}));
    }
    at::manual_seed(11);
    return fit(
        [&] { return Shuffled(batches_); },
        run.train_step(),
        {.epochs = kEpochs,
         .model = run.model.ptr(),
         .metrics =
             {AUC(), LogLoss(ScoreMetricOptions{.scores = ScoreKind::kLogits})},
         .validation = run.validation(held_out_),
         .callbacks = callbacks,
         .checkpoint = run.checkpoint(directory_, case_.options),
         .log_every_steps = 2});
  }

  std::string csv() const {
    return read_text(csv_);
  }

 private:
  std::string directory_;
  std::string csv_;
  Case case_;
  std::vector<ClickBatch> batches_ = click_batches(kBatches, 1);
  std::vector<ClickBatch> held_out_ = click_batches(2, 2);
};

void expect_resumes(const Case& options) {
  const TemporaryFolder folder;
  ClickRun uninterrupted(options.layers);
  const Trainer whole(folder, "whole", options);
  const History expected = whole.train(uninterrupted);
  // Stop in the middle of an epoch, after its last step, and at the very end.
  for (const int64_t stop_after : {1, 4, 5, 6, 10, 14, 15}) {
    SCOPED_TRACE("stopped after step " + std::to_string(stop_after));
    const Trainer part(folder, std::to_string(stop_after), options);
    ClickRun first(options.layers);
    const History interrupted = part.train(first, stop_after);
    EXPECT_EQ(interrupted.stop_reason, "interrupted");
    ClickRun second(options.layers);
    const History history = part.train(second);
    EXPECT_EQ(second.bytes(), uninterrupted.bytes());
    EXPECT_EQ(to_json(history), to_json(expected));
    EXPECT_EQ(part.csv(), whole.csv());
    // A finished training has nothing left to do.
    ClickRun third(options.layers);
    EXPECT_EQ(to_json(part.train(third)), to_json(expected));
    EXPECT_EQ(third.bytes(), uninterrupted.bytes());
  }
}

TEST(TrainingCheckpointTest, ResumesAModelWithTablesBitForBit) {
  expect_resumes({});
}

// No counter shows that a torch::optim optimizer has changed a host table.
TEST(TrainingCheckpointTest, ResumesTablesOfTheHostFromIncrements) {
  struct Model : torch::nn::Module {
    Model()
        : embedding(register_module(
              "embedding",
              TPUEmbedding(TPUEmbeddingOptions{
                  .features = {{"user", feature_of("users", 20, 4)}},
                  .strategy = Strategy::host({.sparse_gradients = true})}))) {}
    TPUEmbedding embedding;
  };
  const TemporaryFolder folder;
  const auto batches = click_batches(6, 1);
  const auto train = [&](const std::string& name, int64_t stop_after) {
    const auto model = std::make_shared<Model>();
    torch::optim::SGD optimizer(
        model->parameters(), torch::optim::SGDOptions(0.5));
    const auto hooks = stopping_after(stop_after);
    fit(batches,
        make_train_step(
            optimizer,
            [&](const ClickBatch& batch) {
              const at::Tensor scores =
                  model->embedding->forward({{"user", batch.user}})["user"].sum(
                      1);
              return StepResult{
                  .loss = (scores - batch.click).square().mean(),
                  .predictions = scores,
                  .labels = batch.click};
            }),
        {.callbacks = {hooks},
         .checkpoint = std::make_shared<Checkpoint>(
             folder / name,
             model,
             optimizer,
             TrainingCheckpointOptions{.every_steps = 1, .full_every = 10})});
    return model->embedding->read_rows("users", 0, 20);
  };
  const at::Tensor uninterrupted = train("whole", -1);
  train("parts", 4);
  EXPECT_TRUE(at::equal(train("parts", -1), uninterrupted));
}

TEST(TrainingCheckpointTest, ResumesAModelWithoutTablesBitForBit) {
  expect_resumes({.layers = 0});
}

TEST(TrainingCheckpointTest, ResumesAModelWithSeveralLayersBitForBit) {
  expect_resumes({.layers = 2, .options = {.keep_last = 1}});
}

TEST(TrainingCheckpointTest, ResumesEarlyStoppingAndItsBestWeights) {
  expect_resumes({.has_early_stopping = true});
}

TEST(TrainingCheckpointTest, AKilledTrainingResumesFromItsLastSave) {
  for (const int64_t layers : {0, 1, 2}) {
    const Case options{
        .layers = layers, .options = {.every_steps = 2, .full_every = 2}};
    const TemporaryFolder folder;
    ClickRun uninterrupted(layers);
    const Trainer whole(folder, "whole", options);
    const History expected = whole.train(uninterrupted);
    const Trainer part(folder, "part", options);
    for (const int64_t killed_after : {1, 5, 8, 11}) {
      ClickRun run(layers);
      EXPECT_THROW(
          part.train(run, killed_after, Trainer::End::kThrow),
          std::runtime_error);
    }
    ClickRun last(layers);
    EXPECT_EQ(to_json(part.train(last)), to_json(expected));
    EXPECT_EQ(last.bytes(), uninterrupted.bytes());
    EXPECT_EQ(part.csv(), whole.csv());
  }
}

TEST(TrainingCheckpointTest, UsesTheSkipOfASource) {
  const TemporaryFolder folder;
  const auto batches = click_batches(4, 1);
  int64_t skipped = 0;
  const auto train = [&](int64_t stop_after) {
    ClickRun run;
    const auto hooks = stopping_after(stop_after, "");
    fit([&] { return Skipping(batches, skipped); },
        run.train_step(),
        {.callbacks = {hooks}, .checkpoint = run.checkpoint(folder / "run")});
  };
  train(3);
  EXPECT_EQ(skipped, 0);
  train(-1);
  // fit() reads the third batch to see that the source has it.
  EXPECT_EQ(skipped, 2);
}

TEST(TrainingCheckpointTest, LoadsWeightsWithoutTheOptimizer) {
  for (const int64_t layers : {0, 1, 2}) {
    const TemporaryFolder folder;
    ClickRun run(layers), loaded(layers), other(layers == 1 ? 2 : 1);
    EXPECT_VALUE_ERROR(
        load_weights(*loaded.model, folder / "run"), "has no checkpoint");
    EXPECT_VALUE_ERROR(
        save_weights(*run.model, ""), "[save_weights] expected a directory");
    for (const int64_t keep_last : {0, -1}) {
      if (layers > 0) {
        EXPECT_VALUE_ERROR(
            save_weights(*run.model, folder / "run", {.keep_last = keep_last}),
            "[save_weights] keep_last must be >= 1, but got " +
                std::to_string(keep_last));
        EXPECT_FALSE(std::filesystem::exists(folder / "run"));
      }
    }
    run.train(
        click_batches(2, 1), {.checkpoint = run.checkpoint(folder / "run")});
    load_weights(*loaded.model, folder / "run");
    run.model->eval();
    loaded.model->eval();
    const ClickBatch batch = click_batches(1, 5)[0];
    EXPECT_TRUE(
        at::equal(loaded.model->forward(batch), run.model->forward(batch)));
    if (layers > 0) {
      EXPECT_VALUE_ERROR(
          load_weights(*other.model, folder / "run"), "layers with tables");
    }
  }
}

// A model that nothing builds before its first step, and its optimizer.
struct LateRun {
  explicit LateRun(bool has_tables) {
    at::manual_seed(3);
    if (has_tables) {
      embedding = whole->register_module(
          "embedding",
          TPUEmbedding(TPUEmbeddingOptions{
              .features = {{"user", feature_of("users", 20, 4)}},
              .optimizer = optim::Adam{},
              .seed = 1}));
    }
    model->push_back("crosses", MultiLayerDCN({.projection_dim = 2}));
    model->push_back("tower", MLP(MLPOptions{.units = {3, 1}}));
    whole->register_module("model", model);
    optimizer = std::make_unique<torch::optim::Adam>(whole->parameters(), 0.01);
  }

  at::Tensor loss_of(const ClickBatch& batch) {
    const at::Tensor scores = embedding.is_empty()
        ? model->forward(
              at::stack({batch.user, batch.movie}, 1).to(at::kFloat) * 0.1)
        : model->forward(embedding->forward({{"user", batch.user}})["user"]);
    return at::binary_cross_entropy_with_logits(scores.squeeze(1), batch.click);
  }
  History train(const std::string& directory, int64_t epochs) {
    return fit(
        click_batches(4, 1),
        make_train_step(
            *optimizer,
            [this](const ClickBatch& batch) { return loss_of(batch); }),
        {.epochs = epochs,
         .model = whole,
         .checkpoint =
             std::make_shared<Checkpoint>(directory, whole, *optimizer)});
  }
  std::string bytes() const {
    return bytes_of(whole);
  }

  std::shared_ptr<torch::nn::Module> whole =
      std::make_shared<torch::nn::Module>("LateRun");
  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Adam> optimizer;
};

TEST(TrainingCheckpointTest, ResumesATrainingThatItsFirstStepBuilt) {
  for (const bool has_tables : {false, true}) {
    SCOPED_TRACE(has_tables);
    const TemporaryFolder folder;
    LateRun whole(has_tables), first(has_tables), second(has_tables);
    at::manual_seed(5);
    whole.train(folder / "whole", 3);
    at::manual_seed(5);
    first.train(folder / "parts", 1);
    EXPECT_CONTAINS(summary(*second.whole), "not built");
    at::manual_seed(9);
    const History history = second.train(folder / "parts", 3);
    EXPECT_EQ(history.epochs.size(), 3U);
    EXPECT_TRUE(second.bytes() == whole.bytes());
    LateRun loaded(has_tables);
    load_weights(*loaded.whole, folder / "parts");
    EXPECT_TRUE(loaded.bytes() == whole.bytes());
  }
}

// Writes model.pt as the first versions did: without the shapes that layers were built for,
// and without a checksum.
void save_as_before(
    const torch::nn::Module& model,
    const TemporaryFolder& folder) {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive dense(archive.compilation_unit());
  nlohmann::json names = nlohmann::json::array();
  for (const auto& parameter : model.named_parameters()) {
    dense.write(
        "tensor_" + std::to_string(names.size()),
        parameter.value().detach(),
        /*is_buffer=*/true);
    names.push_back(parameter.key());
  }
  archive.write("dense", dense);
  archive.write("dense_names", c10::IValue(names.dump()));
  archive.write("layers", c10::IValue("[]"));
  archive.save_to(folder / "model.pt");
}

// Checkpoints did not always have the shapes that layers were built for.
TEST(TrainingCheckpointTest, AnOlderCheckpointNeedsABuiltModel) {
  const TemporaryFolder folder;
  LateRun saved(false), loaded(false);
  saved.loss_of(click_batches(1, 1)[0]);
  save_as_before(*saved.whole, folder);
  EXPECT_VALUE_ERROR(
      load_weights(*loaded.whole, folder.path()),
      "the saved model.crosses.cross_0.kernel_u is Float of shape [2, 2], but its layer "
      "in this model is not built, and the checkpoint does not have the shapes to "
      "build it for. Call build() or forward() of the model once before.");
  loaded.loss_of(click_batches(1, 1)[0]);
  load_weights(*loaded.whole, folder.path());
  EXPECT_TRUE(loaded.bytes() == saved.bytes());
}

// The checkpoint of a model without tables is a single file.
TEST(TrainingCheckpointTest, RefusesADamagedFile) {
  const TemporaryFolder folder;
  ClickRun run(0), loaded(0);
  const auto batches = click_batches(2, 1);
  const auto checkpoint = [&](ClickRun& run) {
    return run.checkpoint(folder / "run");
  };
  const auto resume = [&](ClickRun& run) {
    run.train(batches, {.checkpoint = checkpoint(run)});
  };
  resume(run);
  const std::string path = folder / "run/model.pt";
  const std::string whole = read_text(path);
  const std::string before = loaded.bytes();
  size_t files = 0;
  const auto expect_refused = [&](const std::string& damaged) {
    SCOPED_TRACE(++files);
    folder.write("run/model.pt", damaged);
    EXPECT_TORCH_ERROR(
        load_weights(*loaded.model, folder / "run"),
        "[load_weights] '" + path + "' can't be read: ");
    EXPECT_TRUE(loaded.bytes() == before);
  };
  const size_t end = whole.size() - 30;
  for (size_t i = 0; i < whole.size();
       i = i < end ? std::min(i + 7, end) : i + 1) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    expect_refused(damaged);
    if (i >= end) {
      expect_refused(whole.substr(0, i));
    }
  }
  EXPECT_GT(files, 400U);
  EXPECT_TORCH_ERROR(
      resume(loaded), "[Checkpoint] '" + path + "' can't be read: ");
  EXPECT_TRUE(loaded.bytes() == before);
  folder.write("run/model.pt", whole);
  resume(loaded);
  EXPECT_TRUE(loaded.bytes() == run.bytes());
}

TEST(TrainingCheckpointTest, AFileWithoutAChecksumIsStillRead) {
  const TemporaryFolder folder;
  ClickRun run(0), loaded(0);
  run.model->parameters()[0].data().fill_(0.5);
  save_as_before(*run.model, folder);
  load_weights(*loaded.model, folder.path());
  EXPECT_TRUE(loaded.bytes() == run.bytes());

  // LibTorch reads a file with a checksum, as older versions of Tessera do.
  save_weights(*run.model, folder.path());
  torch::serialize::InputArchive read;
  read.load_from(folder / "model.pt");
  c10::IValue layers;
  EXPECT_TRUE(read.try_read("layers", layers));
}

TEST(TrainingCheckpointTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  for (const int64_t layers : {0, 1}) {
    const TemporaryFolder folder;
    ClickRun run(layers), loaded(layers);
    const auto train = [&](int64_t epochs) {
      run.train(
          click_batches(2, 1),
          {.epochs = epochs, .checkpoint = run.checkpoint(folder / "run")});
    };
    train(1);
    run.model->eval();
    const ClickBatch batch = click_batches(1, 5)[0];
    const at::Tensor expected = run.model->forward(batch);
    {
      const SmallFiles small(200);
      EXPECT_TORCH_ERROR(
          train(2),
          layers == 0 ? "[Checkpoint] " + folder / "run/model.pt" +
                  ": the file can't be written: File too large. Choose a path"
                      : "[Checkpoint] can't write to '" + folder / "run");
    }
    load_weights(*loaded.model, folder / "run");
    loaded.model->eval();
    EXPECT_TRUE(at::equal(loaded.model->forward(batch), expected));
  }
}

enum class LockResult { kLocked, kInUse, kOtherError };

// Tries to lock the directory for training from a child process.
LockResult lock_in_child(const std::string& directory) {
  const pid_t child = ::fork();
  if (child == 0) {
    LockResult result = LockResult::kLocked;
    try {
      lock_for_training(ranks_of(Strategy::fused()), directory);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      result = text.find("[Checkpoint] can't lock") == 0 &&
              text.find("one process at a time") != std::string::npos
          ? LockResult::kInUse
          : LockResult::kOtherError;
    }
    ::_exit(static_cast<int>(result));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? static_cast<LockResult>(WEXITSTATUS(status))
                           : LockResult::kOtherError;
}

TEST(TrainingCheckpointTest, OneProcessAtATimeTrainsWithADirectory) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  ClickRun run;
  const auto hooks = std::make_shared<Hooks>();
  const auto make = [&] { return run.checkpoint(directory); };
  const auto train = [&](std::shared_ptr<Checkpoint> checkpoint) {
    run.train(
        click_batches(2, 1),
        {.callbacks = {hooks}, .checkpoint = std::move(checkpoint)});
  };
  const auto failed = make(), ended = make();
  hooks->step_end = [&](Training&) {
    EXPECT_EQ(lock_in_child(directory), LockResult::kInUse);
    throw std::runtime_error("enough");
  };
  EXPECT_THROW(train(failed), std::runtime_error);
  EXPECT_EQ(lock_in_child(directory), LockResult::kLocked);
  // The same training locks the directory again.
  EXPECT_THROW(train(failed), std::runtime_error);
  hooks->step_end = nullptr;
  hooks->train_end = [&](Training&) {
    EXPECT_EQ(lock_in_child(directory), LockResult::kInUse);
  };
  train(ended);
  EXPECT_EQ(lock_in_child(directory), LockResult::kLocked);
}

TEST(TrainingCheckpointTest, RefusesBadOptionsAndCheckpointsThatDoNotFit) {
  using Resume = TrainingCheckpointOptions::Resume;
  const TemporaryFolder folder;
  const auto batches = click_batches(4, 1);
  ClickRun run;
  const auto train = [&](TrainingCheckpointOptions options,
                         const std::vector<ClickBatch>& source,
                         Metrics metrics = {}) {
    run.train(
        source,
        {.metrics = std::move(metrics),
         .checkpoint = run.checkpoint(folder / "run", options)});
  };
  EXPECT_VALUE_ERROR(
      train({.resume = Resume::kRequired}, batches), "no checkpoint to resume");
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  const auto stopping = stopping_after(3, "");
  run.train(
      batches,
      {.callbacks = {stopping}, .checkpoint = run.checkpoint(folder / "run")});
  EXPECT_VALUE_ERROR(
      train({.resume = Resume::kNever}, batches),
      "has a checkpoint already, but Resume::kNever allows none");
  torch::optim::SGD other(run.model->parameters(), 0.1);
  EXPECT_VALUE_ERROR(
      fit(batches,
          make_train_step(other, run.loss_of()),
          {.checkpoint = std::make_shared<Checkpoint>(
               folder / "run", run.model.ptr(), other)}),
      "has the state of another optimizer than the one that was given");
  EXPECT_VALUE_ERROR(
      train({}, click_batches(2, 1)),
      "saved after 3 batches of epoch 0, but the source has no more than 2");
  EXPECT_VALUE_ERROR(
      train({}, batches, {AUC()}),
      "with the metrics [], but this training has [auc]");
  EXPECT_VALUE_ERROR(
      train({.resume = static_cast<Resume>(7)}, batches),
      "[Checkpoint] resume must be kIfThere, kRequired or kNever, but got 7");
  EXPECT_VALUE_ERROR(
      Checkpoint("", run.model.ptr(), run.optimizer), "expected a directory");
  EXPECT_VALUE_ERROR(
      Checkpoint("x", nullptr, run.optimizer), "expected a model");
  EXPECT_VALUE_ERROR(
      Checkpoint("x", run.model.ptr(), run.optimizer, {.keep_last = 0}),
      "keep_last and full_every must be >= 1");
  // A file has the path of the directory.
  std::ofstream(folder / "file") << "text";
  ClickRun untouched;
  const std::string before = untouched.bytes();
  EXPECT_TORCH_ERROR(
      untouched.train(
          batches, {.checkpoint = untouched.checkpoint(folder / "file")}),
      "[Checkpoint] " + folder / "file" +
          ": the directory can't be made: Not a directory. Choose another "
          "path.");
  EXPECT_TORCH_ERROR(
      untouched.train(
          batches,
          {.checkpoint = untouched.checkpoint(
               folder / "file", {.resume = Resume::kRequired})}),
      "[Checkpoint] can't read the directory '" + folder / "file" +
          "': Not a directory. Correct the path.");
  EXPECT_TORCH_ERROR(
      has_weights(*untouched.model, folder / "file"),
      "[has_weights] can't read the directory '");
  EXPECT_EQ(untouched.bytes(), before);
}

TEST(TrainingCheckpointTest, ErrorsOfTablesNameTheFunctionThatWasCalled) {
  for (const int64_t layers : {1, 2}) {
    SCOPED_TRACE(layers);
    const TemporaryFolder folder;
    ClickRun run(layers), loaded(layers);
    save_weights(*run.model, folder / "weights");
    // The newest checkpoint of the last layer.
    const std::string last =
        layers == 1 ? folder / "weights" : folder / "weights/layer_1";
    const std::string path = last + "/checkpoint_000001/table_0.parameters.0";
    std::string bytes = read_text(path);
    bytes[0] = static_cast<char>(bytes[0] ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_VALUE_ERROR(
        load_weights(*loaded.model, folder / "weights"),
        "[load_weights] '" + path + "': the bytes [0, ");
    EXPECT_VALUE_ERROR(
        loaded.train(
            click_batches(1, 1),
            {.checkpoint = loaded.checkpoint(folder / "weights")}),
        layers == 1 ? "[Checkpoint] '" + folder / "weights" +
                "' has the weights of a model, but no training to resume"
                    : "[Checkpoint] '" + path + "': the bytes [0, ");
    std::filesystem::remove(last + "/checkpoint_000001/manifest.json");
    EXPECT_VALUE_ERROR(
        load_weights(*loaded.model, folder / "weights"),
        "[load_weights] '" + last + "/checkpoint_000001/manifest.json' can't");
    // A file is where a folder should be.
    EXPECT_TORCH_ERROR(
        save_weights(*run.model, path),
        layers == 1
            ? "[save_weights] '" + path + "' is not a directory."
            : "[save_weights] " + path + ": the directory can't be made: ");
  }
}

TEST(TrainingCheckpointTest, AFitThatCanNotSaveNamesItsCheckpoint) {
  const TemporaryFolder folder;
  ClickRun run, other;
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [&](Training&) {
    std::filesystem::remove_all(folder / "run");
    std::ofstream(folder / "run") << "text";
  };
  EXPECT_TORCH_ERROR(
      run.train(
          click_batches(1, 1),
          {.callbacks = {hooks}, .checkpoint = run.checkpoint(folder / "run")}),
      "[Checkpoint] '" + folder / "run" + "' is not a directory.");
}

TEST(TrainingCheckpointTest, ARequiredCheckpointThatIsGoneIsAnError) {
  const TemporaryFolder folder;
  ClickRun run;
  save_weights(*run.model, folder / "run");
  Checkpoint checkpoint(
      folder / "run",
      run.model.ptr(),
      run.optimizer,
      {.resume = TrainingCheckpointOptions::Resume::kRequired});
  TrainingState state;
  Training training(state);
  checkpoint.on_train_begin(training);
  std::filesystem::remove_all(folder / "run/checkpoint_000001");
  EXPECT_VALUE_ERROR(
      checkpoint.resume(training), "has no checkpoint to resume from");
}

// Nothing in the process stops the second training, but saves exclude each other.
TEST(TrainingCheckpointTest, TwoTrainingsOfOneProcessSaveOneAfterTheOther) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  ClickRun run, other;
  const auto train = [&](ClickRun& clicks, Callbacks callbacks) {
    clicks.train(
        click_batches(1, 1),
        {.callbacks = std::move(callbacks),
         .checkpoint = clicks.checkpoint(directory)});
  };
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](Training&) { train(other, {}); };
  train(run, {hooks});
  EXPECT_EQ(list_checkpoints(directory).size(), 2U);
  bool was_refused = false;
  save_weights(
      *run.model, directory, {.extra = [&](torch::serialize::OutputArchive&) {
        EXPECT_TORCH_ERROR(
            save_weights(*other.model, directory),
            "[save_weights] can't lock '" + directory +
                "': it is in use. Let one save at a time write into this "
                "directory.");
        was_refused = true;
      }});
  EXPECT_TRUE(was_refused);
}

}  // namespace tessera::training::checkpoint_test
