// SPDX-License-Identifier: Apache-2.0
#include "src/common/atomic_file.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::test::atomic_file_test {

std::set<std::string> names_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.insert(entry.path().filename());
  }
  return names;
}

void write(AtomicFile& file, const std::string& text) {
  file.write(text.data(), text.size());
}

void save(const std::string& path, const std::string& text) {
  AtomicFile file(path, "[test]");
  write(file, text);
  file.commit();
}

TEST(AtomicFileTest, AppearsOnlyAtCommit) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "before");
  {
    AtomicFile file(path, "[test]");
    write(file, "after");
    EXPECT_EQ(read_text(path), "before");
    EXPECT_EQ(file.written_path(), path + ".tmp-tessera");
    file.commit();
    EXPECT_EQ(read_text(path), "after");
  }
  {
    AtomicFile file(path, "[test]");
    write(file, "never");
  }
  EXPECT_EQ(read_text(path), "after");
  EXPECT_EQ(names_in(folder), std::set<std::string>{"file"});
}

TEST(AtomicFileTest, RemovesTheLeftoverOfADeadProcess) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(path, "[test]");
    write(file, "half of a longer text");
    ::_exit(0);  // runs no destructor
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(names_in(folder), std::set<std::string>{"file.tmp-tessera"});
  save(path, "whole");
  EXPECT_EQ(read_text(path), "whole");
  EXPECT_EQ(names_in(folder), std::set<std::string>{"file"});
}

TEST(AtomicFileTest, RemovesAReadOnlyLeftover) {
  const TemporaryFolder folder;
  const std::string left = folder.write("file.tmp-tessera", "left");
  std::filesystem::permissions(left, std::filesystem::perms::owner_read);
  save(folder / "file", "whole");
  EXPECT_EQ(names_in(folder), std::set<std::string>{"file"});
}

TEST(AtomicFileTest, TwoWritersOfOnePathBothSucceed) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  {
    AtomicFile first(path, "[test]");
    write(first, "first");
    AtomicFile second(path, "[test]");
    write(second, "second");
    EXPECT_NE(first.written_path(), second.written_path());
    first.commit();
    EXPECT_EQ(read_text(path), "first");
    save(path, "third");
    second.commit();
    EXPECT_EQ(read_text(path), "second");
  }
  EXPECT_EQ(names_in(folder), std::set<std::string>{"file"});
}

TEST(AtomicFileTest, KeepsLinksFoldersAndPipesWithItsTemporaryName) {
  const TemporaryFolder folder;
  const std::string other = folder.write("other", "other");
  const std::string temporary = folder / "file.tmp-tessera";
  std::filesystem::create_symlink(other, temporary);
  save(folder / "file", "one");
  EXPECT_TRUE(std::filesystem::is_symlink(temporary));
  EXPECT_EQ(read_text(other), "other");
  std::filesystem::remove(temporary);
  std::filesystem::create_directory(temporary);
  save(folder / "file", "two");
  EXPECT_TRUE(std::filesystem::is_directory(temporary));
  std::filesystem::remove(temporary);
  ASSERT_EQ(::mkfifo(temporary.c_str(), 0600), 0);
  save(folder / "file", "three");
  EXPECT_TRUE(std::filesystem::is_fifo(temporary));
  EXPECT_EQ(read_text(folder / "file"), "three");
}

TEST(AtomicFileTest, ErrorsNameThePathAndTheReason) {
  const TemporaryFolder folder;
  const std::string path = folder / "no/file";
  EXPECT_TORCH_ERROR(
      save(path, "text"),
      "[test] " + path +
          ": the file can't be created: No such file or directory. Make its "
          "folder first, or choose another path.");
}

TEST(AtomicFileTest, AnyNameThatTheSystemAllowsIsWritten) {
  const TemporaryFolder folder;
  for (const size_t size : {242, 243, 244, 255}) {
    SCOPED_TRACE(size);
    const std::string name(size, 'n');
    const std::string path = folder / name;
    AtomicFile first(path, "[test]");
    write(first, "first");
    AtomicFile second(path, "[test]");
    write(second, "second");
    EXPECT_NE(first.written_path(), second.written_path());
    first.commit();
    second.commit();
    EXPECT_EQ(read_text(path), "second");
    EXPECT_EQ(names_in(folder), std::set<std::string>{name});
    const std::string left =
        std::filesystem::path(first.written_path()).filename();
    folder.write(left, "left by a process that died");
    save(path, "whole");
    EXPECT_EQ(read_text(path), "whole");
    EXPECT_EQ(names_in(folder), std::set<std::string>{name});
    std::filesystem::remove(path);
  }
  const std::string path = folder / std::string(256, 'n');
  EXPECT_TORCH_ERROR(
      save(path, "text"),
      "[test] " + path +
          ": the file can't be created: File name too long. Choose a shorter "
          "path.");
  EXPECT_TRUE(names_in(folder).empty());
}

}  // namespace tessera::test::atomic_file_test
