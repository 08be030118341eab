// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/directory_watch.h"

#include "src/common/check.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tessera::serving {

DirectoryWatch::DirectoryWatch(std::filesystem::path directory)
    : directory_(std::move(directory)),
      inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TESSERA_CHECK(
      stop_.is_open(),
      "[Reader] can't watch a directory: {}. Close files, or raise the limit of open files.",
      std::strerror(errno));
  watch_again();
}

// A watch belongs to the directory itself, and not to its path.
void DirectoryWatch::watch_again() {
  if (!inotify_.is_open()) {
    return;
  }
  const int watch = ::inotify_add_watch(
      inotify_.number(),
      directory_.c_str(),
      IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF |
          IN_ONLYDIR);
  if (watch_ >= 0 && watch != watch_) {
    ::inotify_rm_watch(inotify_.number(), watch_);
  }
  watch_ = watch;
}

void DirectoryWatch::wait(double seconds) {
  std::array<pollfd, 2> files{
      {{.fd = stop_.number(), .events = POLLIN, .revents = 0},
       {.fd = inotify_.is_open() ? inotify_.number() : -1,
        .events = POLLIN,
        .revents = 0}}};
  const double milliseconds = std::clamp(1000.0 * seconds, 1.0, 3.6e6);
  ::poll(files.data(), files.size(), static_cast<int>(milliseconds));
  if ((files[1].revents & POLLIN) != 0) {
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(inotify_.number(), events.data(), events.size()) > 0) {
    }
  }
  watch_again();
}

void DirectoryWatch::stop() {
  is_stopped_ = true;
  const uint64_t one = 1;
  (void)!::write(stop_.number(), &one, sizeof(one));
}

}  // namespace tessera::serving
