// SPDX-License-Identifier: Apache-2.0
// A recommender that is trained while it serves: one process trains on MovieLens 100K and publishes versions, and
// this one serves the newest version over HTTP.
//
//   serve --data FOLDER [--port 8080]
#include "examples/common/command_line.h"
#include "examples/serve/trainer.h"

#include <fmt/format.h>
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace fs = std::filesystem;
namespace serving = tessera::serving;
using namespace std::chrono_literals;

namespace {

struct Options {
  TrainerOptions trainer = {};
  serving::ServerOptions server = {.threads = 2};
  double seconds = 0.0;  // 0: until a signal
  bool only_trains = false;
};

/// The process that trains. It ends with this object.
class TrainerProcess {
 public:
  TrainerProcess(const std::string& program, const TrainerOptions& options) {
    std::vector<std::string> arguments{
        program,
        "--train",
        "--data",
        options.movielens,
        "--directory",
        options.directory,
        "--every",
        fmt::format("{}", options.every_seconds)};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) {
      pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    const int error = posix_spawn(
        &process_,
        "/proc/self/exe",
        nullptr,
        nullptr,
        pointers.data(),
        environ);
    TORCH_CHECK(
        error == 0,
        "[serve] could not start the trainer: ",
        std::strerror(error),
        ".");
  }
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;
  ~TrainerProcess() {
    if (is_running()) {
      kill(process_, SIGTERM);
      waitpid(process_, nullptr, 0);
    }
  }

  bool is_running() {
    has_ended_ = has_ended_ || waitpid(process_, nullptr, WNOHANG) == process_;
    return !has_ended_;
  }

 private:
  pid_t process_ = 0;
  bool has_ended_ = false;
};

// Returns the exit status.
int serve(const std::string& program, const Options& options) {
  torch::set_num_threads(1);  // each thread of the server scores by itself
  const tessera::training::StopSignal signal;
  const std::string published = options.trainer.directory + "/published";
  TORCH_CHECK_VALUE(
      !fs::exists(published),
      "[serve] --directory: '",
      options.trainer.directory,
      "' has versions of another training, and this one begins anew. Choose "
      "another folder.");
  TrainerProcess trainer(program, options.trainer);
  std::cerr << "training until the first version is there ...\n";
  while (!fs::exists(published + "/CURRENT")) {
    TORCH_CHECK(
        trainer.is_running(),
        "[serve] the trainer has ended before it published a version. Its "
        "message is above.");
    if (signal.name() != nullptr) {
      return 130;
    }
    std::this_thread::sleep_for(50ms);
  }
  // snippet: serve_program
  const auto reader = std::make_shared<serving::Reader>(published);
  serving::Server server(
      reader, options.server, serving::ProgramScorer(reader));
  // end snippet
  const std::string url =
      fmt::format("http://{}:{}", options.server.address, server.port());
  std::cout << "serving at " << url << "\nscores for a user:\n  head -1 "
            << options.trainer.directory << "/requests.jsonl | curl " << url
            << "/score -d @-\nfilms for a user:\n  curl " << url
            << R"(/recommend -d '{"user": {"user": "1", "liked": []}}')"
            << "\nStop with Ctrl-C." << std::endl;
  const auto begin = std::chrono::steady_clock::now();
  bool has_trainer = true;
  while (signal.name() == nullptr &&
         (options.seconds == 0.0 ||
          std::chrono::steady_clock::now() - begin <
              std::chrono::duration<double>(options.seconds))) {
    if (has_trainer && !trainer.is_running() && signal.name() == nullptr) {
      has_trainer = false;
      std::cerr << "the trainer has ended; version "
                << reader->version()->number() << " goes on serving\n";
    }
    std::this_thread::sleep_for(50ms);
  }
  server.stop();
  std::cout << "served version " << reader->version()->number() << " at the end"
            << std::endl;
  return 0;
}

std::optional<int> parse_arguments(int argc, char** argv, Options& options) {
  CLI::App app(
      "Trains on MovieLens 100K, publishes a version every few seconds, and serves the newest one over HTTP.");
  app.add_option(
         "--data", options.trainer.movielens, "folder of MovieLens 100K")
      ->required();
  app.add_option(
         "--address",
         options.server.address,
         "address to listen at; others than 127.0.0.1 open the server to the network")
      ->capture_default_str();
  app.add_option(
         "--port", options.server.port, "port to listen at; 0 is any free one")
      ->capture_default_str()
      ->check(up_to(65'535, 0));
  app.add_option(
         "--threads", options.server.threads, "threads that look up and score")
      ->capture_default_str()
      ->check(up_to(1024));
  app.add_option(
         "--every", options.trainer.every_seconds, "seconds between versions")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option(
         "--seconds", options.seconds, "ends after this time; 0: after Ctrl-C")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_output(
      app,
      "--directory",
      options.trainer.directory,
      "keep the versions in this folder, in place of a temporary one");
  app.add_flag("--train", options.only_trains, "only train and publish");
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}

/// A temporary folder, unless there is a name of another one.
class Folder {
 public:
  explicit Folder(std::string& name) : is_temporary_(name.empty()) {
    if (is_temporary_) {
      std::string pattern = fs::temp_directory_path() / "tessera.XXXXXX";
      TORCH_CHECK(
          mkdtemp(pattern.data()) != nullptr,
          "[serve] could not make a folder in ",
          fs::temp_directory_path().string(),
          ": ",
          std::strerror(errno),
          ".");
      name = pattern;
    }
    fs::create_directories(name);
    name_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    if (is_temporary_) {
      fs::remove_all(name_, ignored);
    }
  }

 private:
  bool is_temporary_;
  std::string name_;
};

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  return run_program("serve", [&] {
    Options options;
    if (const auto status = parse_arguments(argc, argv, options)) {
      return *status;
    }
    const Folder folder(options.trainer.directory);
    if (options.only_trains) {
      // The trainer must not outlive the server.
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      return train_and_publish(options.trainer);
    }
    return serve(argv[0], options);
  });
}
