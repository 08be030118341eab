// SPDX-License-Identifier: Apache-2.0
// Files that would take far more memory than they have bytes.
#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"
#include "packages/serving/tests/published_model.h"
#include "src/common/checksum.h"

#include <unistd.h>

namespace tessera::serving::version_bounds_test {

constexpr int kTables = 16;
constexpr int64_t kMiB = int64_t{1} << 20;

// Adds a section to `data`.
Section add_section(std::string& data, std::string bytes) {
  const Section section{
      .offset = static_cast<int64_t>(data.size()),
      .bytes = static_cast<int64_t>(bytes.size()),
      .xxh3 = checksum_of(bytes)};
  bytes.resize((bytes.size() + 63) / 64 * 64);
  data += bytes;
  return section;
}

// Tables without keys so far. A version after the base has one removed key each.
VersionFile make_version_file(
    int64_t version,
    std::optional<VersionLink> previous,
    std::string& data) {
  VersionFile file{
      .version = version, .base = 1, .previous = std::move(previous)};
  for (int i = 0; i < kTables; ++i) {
    TableFile& table = file.tables.emplace_back(TableFile{
        .name = std::to_string(i),
        .dim = int64_t{1} << 24,
        .format = "float32",
        .keys = KeyOptions{.capacity = (int64_t{1} << 32) - 2}});
    table.rows = add_section(data, "");
    table.numbers =
        add_section(data, std::string(file.is_base() ? 64 : 0, '\0'));
    if (!file.is_base()) {
      table.removed = add_section(data, std::string(8, '\0'));
    }
  }
  file.data_bytes = static_cast<int64_t>(data.size());
  return file;
}

VersionLink write_version(
    const std::string& directory,
    const VersionFile& file,
    const std::string& data) {
  const std::string folder = directory + "/" + version_name(file.version);
  const std::string text = to_text(file);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/version.json") << text;
  std::ofstream(folder + "/data") << data;
  const VersionLink link{.version = file.version, .xxh3 = checksum_in(text)};
  std::ofstream(directory + "/CURRENT") << to_text(link);
  return link;
}

TEST(VersionBoundsTest, TablesWithoutRowsTakeLittleMemory) {
  const TemporaryFolder folder;
  std::string data;
  const VersionLink base = write_version(
      folder / "published", make_version_file(1, std::nullopt, data), data);
  const int64_t before = resident_bytes();
  Reader reader(folder / "published", {.follow = false});
  // One row of zeros has 64 MiB.
  EXPECT_LE(resident_bytes() - before, 160 * kMiB);
  data.clear();
  write_version(folder / "published", make_version_file(2, base, data), data);
  const int64_t after_base = resident_bytes();
  EXPECT_TRUE(reader.refresh());
  EXPECT_EQ(reader.version()->tables().size(), size_t{kTables});
  EXPECT_LE(resident_bytes() - after_base, 64 * kMiB);
}

TEST(VersionBoundsTest, SectionsDoNotShareTheirBytes) {
  std::string data;
  VersionFile file = make_version_file(1, std::nullopt, data);
  EXPECT_NO_THROW(version_from_text(to_text(file), "[test]"));
  for (const std::string name : {"a", "b"}) {
    file.dense.push_back(
        {.name = name,
         .dtype = "int8",
         .shape = {file.data_bytes},
         .values = {.bytes = file.data_bytes}});
  }
  EXPECT_VALUE_ERROR(
      version_from_text(to_text(file), "[test]"),
      "[test] its dense do not fit together");
}

TEST(VersionBoundsTest, LargeFilesAreRefusedBeforeTheyAreRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "published";
  const auto model = std::make_shared<PublishedModel>();
  Publisher(model, path).publish();
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  const std::string version = path + "/version_0000000001/version.json";
  const auto open = [&] { Reader(path, {.follow = false}); };
  const std::string too_long =
      "expected a file of at most 16777216 bytes at '" + version;
  std::filesystem::resize_file(version, 17 * kMiB);
  EXPECT_INVALID_ARGUMENT(open(), too_long);
  std::filesystem::resize_file(version, kTiB);
  EXPECT_INVALID_ARGUMENT(open(), too_long);
  std::filesystem::resize_file(path + "/CURRENT", kTiB);
  EXPECT_INVALID_ARGUMENT(open(), "expected a file of at most 256 bytes");
  // The publisher of such a directory goes on, too.
  Publisher publisher(model, path);
  EXPECT_EQ(publisher.publish(), 2);
  EXPECT_EQ(Reader(path, {.follow = false}).version()->number(), 2);
  // No publisher writes a version that readers refuse.
  std::string text(17 * kMiB, ' ');
  text += checksum_ending(checksum_of(text));
  EXPECT_VALUE_ERROR(
      version_from_text(text, "[test]"),
      "[test] expected at most 16777216 bytes, but got 17825");
}

}  // namespace tessera::serving::version_bounds_test
