// SPDX-License-Identifier: Apache-2.0
// How a Reader follows a directory, and what it does about damage.
#include <tessera/serving/publisher.h>
#include <tessera/serving/reader.h>
#include <tessera/serving/short_time_slices.h>

#include "packages/serving/src/format/version_file.h"
#include "packages/serving/tests/published_model.h"
#include "src/common/checksum.h"

#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace tessera::serving::reader_test {

// Collects events, and waits for one.
class Events {
 public:
  ReaderOptions options() {
    return {.poll_seconds = 0.05, .on_event = [this](const ReaderEvent& event) {
              const std::lock_guard<std::mutex> lock(mutex_);
              events_.push_back(event);
              changed_.notify_all();
            }};
  }
  bool wait_for(const std::function<bool(const ReaderEvent&)>& is_it) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::any_of(events_.begin(), events_.end(), is_it);
    });
  }
  bool wait_for_version(int64_t version) {
    return wait_for([&](const ReaderEvent& event) {
      return event.version == version && event.problem.empty();
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ReaderEvent> events_;
};

struct Published {
  Published() : publisher(model, folder / "published") {
    publish();
  }
  int64_t publish() {
    std::mt19937_64 random(seed++);
    model->learn(model->random_batch(random));
    return publisher.publish({.step = static_cast<int64_t>(seed)});
  }
  std::string file(int64_t version, const char* name) const {
    char folder_name[32];
    std::snprintf(
        folder_name,
        sizeof(folder_name),
        "version_%010lld",
        static_cast<long long>(version));
    return folder / (std::string("published/") + folder_name + "/" + name);
  }

  uint64_t seed = 1;
  TemporaryFolder folder;
  std::shared_ptr<PublishedModel> model = std::make_shared<PublishedModel>();
  Publisher publisher;
};

void change_byte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(offset);
  const int byte = file.get();
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 0x20));
}

TEST(ReaderTest, FollowsAndARequestKeepsItsVersion) {
  Published published;
  Events events;
  Reader reader(published.folder / "published", events.options());
  const std::shared_ptr<const Version> first = reader.version();
  std::mt19937_64 random(1);
  const auto batch = published.model->random_batch(random);
  const auto before = look_up(*first, "movie", batch.at("movie"));
  for (int64_t version = 2; version <= 10; ++version) {
    EXPECT_EQ(published.publish(), version);
    ASSERT_TRUE(events.wait_for_version(version));
    EXPECT_EQ(reader.version()->number(), version);
    expect_same_lookups(*reader.version(), *published.model, 5);
  }
  EXPECT_EQ(first->number(), 1);
  EXPECT_EQ(look_up(*first, "movie", batch.at("movie")), before);
  EXPECT_EQ(reader.status().taken, 10);
  EXPECT_EQ(reader.status().problem, "");
}

TEST(ReaderTest, ABaseInMemoryGivesTheSame) {
  Published published;
  published.publish();
  const Reader reader(
      published.folder / "published",
      {.follow = false, .copy_to_memory = true});
  expect_same_lookups(*reader.version(), *published.model, 1);
}

TEST(ReaderTest, RollsBackAndFollowsAgain) {
  Published published;
  std::mt19937_64 random(1);
  const auto batch = published.model->random_batch(random);
  Events events;
  Reader reader(published.folder / "published", events.options());
  std::vector<std::vector<float>> expected(1);
  expected.push_back(look_up(*reader.version(), "word", batch.at("word")));
  for (int64_t version = 2; version <= 4; ++version) {
    published.publish();
    ASSERT_TRUE(events.wait_for_version(version));
    expected.push_back(look_up(*reader.version(), "word", batch.at("word")));
  }
  for (const int64_t version : {2, 4, 1, 3}) {
    reader.rollback(version);
    EXPECT_EQ(reader.version()->number(), version);
    EXPECT_EQ(
        look_up(*reader.version(), "word", batch.at("word")),
        expected[version]);
  }
  EXPECT_TRUE(reader.status().is_pinned);
  published.publish();
  EXPECT_FALSE(reader.refresh());
  EXPECT_EQ(reader.version()->number(), 3);
  EXPECT_EQ(reader.status().newest, 5);
  std::filesystem::rename(
      published.folder / "published", published.folder / "away");
  EXPECT_FALSE(reader.refresh());
  EXPECT_EQ(reader.status().problem, "");
  std::filesystem::rename(
      published.folder / "away", published.folder / "published");
  EXPECT_INVALID_ARGUMENT(reader.rollback(99), "there is no version 99");
  reader.unpin();
  EXPECT_EQ(reader.version()->number(), 5);
}

// A damaged version is kept out, whatever byte is wrong. The next base is taken.
TEST(ReaderTest, KeepsDamagedVersionsOut) {
  for (const char* name : {"version.json", "data"}) {
    SCOPED_TRACE(name);
    Published published;
    Events events;
    Reader reader(published.folder / "published", {.follow = false});
    published.publish();
    const std::string path = published.file(2, name);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    std::mt19937_64 random(1);
    for (int i = 0; i < 60; ++i) {
      const auto offset =
          static_cast<int64_t>(random() % static_cast<uint64_t>(size));
      change_byte(path, offset);
      bool is_refused = false;
      try {
        is_refused = !reader.refresh();
      } catch (const std::invalid_argument& error) {
        is_refused = true;
        EXPECT_CONTAINS(error.what(), path);
      }
      // Bytes between sections have no meaning.
      if (is_refused) {
        EXPECT_EQ(reader.version()->number(), 1);
      } else {
        EXPECT_STREQ(name, "data");
        reader.rollback(1);
        reader.unpin();
      }
      change_byte(path, offset);
    }
    std::filesystem::resize_file(path, size / 2);
    EXPECT_INVALID_ARGUMENT(reader.refresh(), path);
    std::filesystem::remove(path);
    EXPECT_RAISES(std::runtime_error, reader.refresh(), path);
    EXPECT_EQ(reader.version()->number(), 1);
  }
}

TEST(ReaderTest, NamesAProblemOnceAndGoesOnWhenItIsSolved) {
  Published published;
  Events events;
  Reader reader(published.folder / "published", events.options());
  const std::string current = published.folder / "published/CURRENT";
  const std::string before = read_text(current);
  std::ofstream(current) << "nonsense";
  ASSERT_TRUE(events.wait_for([](const ReaderEvent& event) {
    return event.problem.find("expected the number and the checksum") !=
        std::string::npos;
  }));
  EXPECT_NE(reader.status().problem, "");
  EXPECT_EQ(reader.version()->number(), 1);
  std::ofstream(current) << before;
  published.publish();
  ASSERT_TRUE(events.wait_for_version(2));
  EXPECT_EQ(reader.status().problem, "");
}

// A version that is copied to the directory in pieces is taken when it is complete, whatever
// the reader has seen of it before.
TEST(ReaderTest, LooksAgainWhileTheFilesOfAVersionChange) {
  Published published;
  const std::string copy = published.folder / "copy";
  std::filesystem::copy(
      published.folder / "published",
      copy,
      std::filesystem::copy_options::recursive);
  Events events;
  Reader reader(copy, events.options());
  published.publish();
  const auto wait_for_problem = [&](const std::string& text) {
    return events.wait_for([&](const ReaderEvent& event) {
      return event.problem.find(text) != std::string::npos;
    });
  };
  const std::string folder = copy + "/version_0000000002/";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(
      published.folder / "published/CURRENT",
      copy + "/CURRENT",
      std::filesystem::copy_options::overwrite_existing);
  ASSERT_TRUE(wait_for_problem("can't be read"));
  const auto copy_in_pieces = [&](const std::string& name,
                                  const std::string& problem) {
    const std::string bytes = read_text(published.file(2, name.c_str()));
    std::ofstream out(folder + name, std::ios::binary);
    out << bytes.substr(0, bytes.size() / 2) << std::flush;
    EXPECT_TRUE(wait_for_problem(name + problem));
    out << bytes.substr(bytes.size() / 2);
  };
  copy_in_pieces("version.json", ": expected a checksum");
  ASSERT_TRUE(wait_for_problem("data: the file can't be read: No such file"));
  copy_in_pieces("data", ": expected ");
  ASSERT_TRUE(events.wait_for_version(2));
  expect_same_lookups(*reader.version(), *published.model, 1);

  // The size stays, and the time may stay, too.
  published.publish();
  std::filesystem::copy(published.file(3, ""), copy + "/version_0000000003");
  change_byte(copy + "/version_0000000003/data", 0);
  std::filesystem::copy_file(
      published.folder / "published/CURRENT",
      copy + "/CURRENT",
      std::filesystem::copy_options::overwrite_existing);
  ASSERT_TRUE(wait_for_problem("version_0000000003/data: the rows of table"));
  change_byte(copy + "/version_0000000003/data", 0);
  ASSERT_TRUE(events.wait_for_version(3));
  expect_same_lookups(*reader.version(), *published.model, 1);
}

TEST(ReaderTest, ADirectoryMayVanishAndComeBack) {
  Published published;
  Events events;
  Reader reader(published.folder / "published", events.options());
  std::filesystem::rename(
      published.folder / "published", published.folder / "away");
  ASSERT_TRUE(events.wait_for(
      [](const ReaderEvent& event) { return !event.problem.empty(); }));
  expect_same_lookups(*reader.version(), *published.model, 1);
  std::filesystem::rename(
      published.folder / "away", published.folder / "published");
  published.publish();
  ASSERT_TRUE(events.wait_for_version(2));
  expect_same_lookups(*reader.version(), *published.model, 1);
}

TEST(ReaderTest, MistakesAreNamed) {
  Published published;
  const std::string path = published.folder / "published";
  EXPECT_INVALID_ARGUMENT(Reader(""), "expected the directory of a Publisher");
  EXPECT_RAISES(
      std::runtime_error, Reader(path + "/nothing"), "nothing/CURRENT:");
  EXPECT_INVALID_ARGUMENT(
      Reader(path, {.poll_seconds = 0.0}),
      "poll_seconds must be finite and > 0");
  const Reader reader(path);
  const Version& version = *reader.version();
  EXPECT_INVALID_ARGUMENT(
      version.feature("film"),
      "there is no feature 'film'. Known: movie, watched, session, word, user, friends");
  EXPECT_INVALID_ARGUMENT(version.table("film"), "Known: movies, words, users");
  EXPECT_RAISES(
      std::out_of_range,
      (void)version.output_size(99, {}),
      "there are 6 features");
  const size_t movie = version.feature("movie");
  const size_t watched = version.feature("watched");
  std::vector<float> out(32);
  const std::vector<int64_t> ids{1, 2};
  const std::vector<int64_t> splits{0, 2};
  const std::vector<float> weights{1.0F};
  const std::span<float> half = std::span(out).first(16);
  EXPECT_INVALID_ARGUMENT(
      version.lookup(movie, {.ids = ids}, half),
      "gives 32 floats for this batch, but `out` has 16");
  for (const size_t size : {SIZE_MAX, SIZE_MAX / 2 + 2, SIZE_MAX / 2 + 1}) {
    const FeatureBatch batch{
        .ids = ids, .row_splits = std::span(ids.data(), size)};
    EXPECT_INVALID_ARGUMENT(
        (void)version.output_size(movie, batch),
        "are too many. Split the batch");
  }
  const std::vector<int64_t> large{1, 3000};
  EXPECT_RAISES(
      std::out_of_range,
      version.lookup(movie, {.ids = large}, out),
      "its table 'movies' has ids in [0, 3000), but got 3000 at position 1");
  const std::vector<int64_t> negative{1, -1};
  EXPECT_RAISES(
      std::out_of_range,
      version.lookup(movie, {.ids = negative}, out),
      "got -1");
  const FeatureBatch unequal{
      .ids = ids, .row_splits = splits, .weights = weights};
  EXPECT_INVALID_ARGUMENT(
      version.lookup(watched, unequal, half), "1 weights for 2 ids");
  for (const std::vector<int64_t>& wrong :
       std::vector<std::vector<int64_t>>{{0, 3}, {1, 2}, {0, 2, 1, 2}, {0}}) {
    std::vector<float> space((wrong.size() - 1) * 16);
    const FeatureBatch batch{.ids = ids, .row_splits = wrong};
    EXPECT_INVALID_ARGUMENT(
        version.lookup(watched, batch, space), "row_splits must ascend from 0");
  }
  std::vector<float> two(2 * 3 * 16);
  EXPECT_INVALID_ARGUMENT(
      version.lookup(version.feature("session"), {.ids = ids}, two),
      "is a sequence, so it needs row_splits");
  const size_t movies = version.table("movies");
  EXPECT_RAISES(
      std::out_of_range,
      version.lookup_rows(movies, large, out),
      "got 3000 at position 1");
  const std::span<const int64_t> endless(ids.data(), size_t{1} << 60);
  EXPECT_INVALID_ARGUMENT(
      version.lookup_rows(movies, endless, {}), "are too many");
  EXPECT_EQ(out, std::vector<float>(32));
  version.lookup(movie, {}, {});  // no examples
}

// Changes numbers of version.json and of the data, and corrects all checksums.
class HostileVersion {
 public:
  explicit HostileVersion(std::string directory)
      : directory_(std::move(directory)),
        link_(link_from_text(read_text(directory_ + "/CURRENT"), "[test]")),
        folder_(directory_ + "/" + version_name(link_.version)),
        file_(
            version_from_text(read_text(folder_ + "/version.json"), "[test]")),
        data_(read_text(folder_ + "/data")) {}

  void write_changed(std::mt19937_64& random) const {
    VersionFile file = file_;
    std::string data = data_;
    const auto is_inside = [&](const Section& section) {
      const auto size = static_cast<int64_t>(data.size());
      return section.offset >= 0 && section.bytes >= 0 &&
          section.offset <= size && section.bytes <= size - section.offset;
    };
    const auto change = [&](int64_t& number) {
      constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
      const int64_t numbers[] = {
          0,
          -1,
          1,
          63,
          64,
          int64_t{1} << 31,
          (int64_t{1} << 32) - 1,
          kMax,
          kMax - 63,
          number + 1,
          number - 1,
          number * 2,
          number + 64};
      number = numbers[random() % std::size(numbers)];
    };
    std::vector<int64_t*> numbers{
        &file.version, &file.base, &file.step, &file.data_bytes};
    std::vector<Section*> sections;
    for (TableFile& table : file.tables) {
      numbers.insert(
          numbers.end(), {&table.dim, &table.vocabulary_size, &table.count});
      sections.push_back(&table.rows);
      if (table.numbers) {
        sections.push_back(&*table.numbers);
      }
      if (table.removed) {
        sections.push_back(&*table.removed);
      }
      if (table.keys) {
        numbers.push_back(&table.keys->capacity);
      }
    }
    for (FeatureFile& feature : file.features) {
      numbers.push_back(&feature.sequence_length);
    }
    for (Section* section : sections) {
      numbers.insert(numbers.end(), {&section->offset, &section->bytes});
    }
    for (uint64_t i = random() % 3; i > 0; --i) {
      change(*numbers[random() % numbers.size()]);
    }
    for (uint64_t i = random() % 4; i > 0; --i) {
      // Numbers and keys rather than rows.
      const Section& section = *sections[random() % sections.size()];
      if (section.bytes > 0 && is_inside(section)) {
        data[static_cast<size_t>(
            section.offset + static_cast<int64_t>(random() % section.bytes))] ^=
            static_cast<char>(1U << (random() % 8));
      }
    }
    for (Section* section : sections) {
      if (is_inside(*section)) {
        section->xxh3 = checksum_of(std::string_view(data).substr(
            static_cast<size_t>(section->offset),
            static_cast<size_t>(section->bytes)));
      }
    }
    const std::string text = to_text(file);
    std::ofstream(folder_ + "/version.json") << text;
    std::ofstream(folder_ + "/data") << data;
    std::ofstream(directory_ + "/CURRENT") << to_text(
        VersionLink{.version = link_.version, .xxh3 = checksum_in(text)});
  }

 private:
  std::string directory_;
  VersionLink link_;
  std::string folder_;
  VersionFile file_;
  std::string data_;
};

// A version that somebody has made to do harm is refused, or looks up some numbers.
TEST(ReaderTest, HostileVersionsDoNoHarm) {
  Published published;
  published.publish();
  published.publish();
  const std::string path = published.folder / "published";
  std::mt19937_64 random(11);
  const auto batch = published.model->random_batch(random);
  int64_t refused = 0;
  int64_t opened = 0;
  for (const bool is_base : {false, true}) {
    if (is_base) {
      published.model->embedding->update_embedding_table(
          "words", at::full({500, 10}, 0.5));
      published.publish();
    }
    const HostileVersion hostile(path);
    for (int i = 0; i < 400; ++i) {
      hostile.write_changed(random);
      try {
        const Reader reader(
            path, {.follow = false, .copy_to_memory = i % 2 == 0});
        const std::shared_ptr<const Version> version = reader.version();
        ++opened;
        for (const auto& [name, one] : batch) {
          const size_t feature = version->feature(name);
          if (version->output_size(feature, one.for_reader()) > 10'000'000) {
            continue;  // a long sequence
          }
          try {
            look_up(*version, name, one);
          } catch (const std::out_of_range&) {
            // The table has fewer rows now.
          }
        }
      } catch (const std::invalid_argument&) {
        ++refused;
      } catch (const std::runtime_error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(opened, 100);
}

// Threads look up while versions are applied. Each row of a version has one value, its
// number, so a torn row, or rows of two versions in one answer, would show.
TEST(ReaderTest, EveryAnswerBelongsToOneVersion) {
  const TemporaryFolder folder;
  const auto model = std::make_shared<PublishedModel>(
      PublishedModelOptions{.movies = 2000, .dim = 32, .has_keys = false});
  const auto set_rows = [&](float value) {
    model->embedding->update_embedding_table(
        "movies", at::full({2000, 32}, value));
  };
  set_rows(1.0F);
  Publisher publisher(model, folder / "published", {.keep_last = 1});
  publisher.publish({.step = 1});
  Reader reader(folder / "published", {.poll_seconds = 0.01});
  std::atomic<bool> ends = false;
  std::atomic<int64_t> wrong = 0;
  std::atomic<int64_t> read = 0;
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<int64_t> ids(64);
      std::vector<float> out(64 * 32);
      int64_t newest = 0;
      while (!ends) {
        for (int64_t& id : ids) {
          id = static_cast<int64_t>(random() % 2000);
        }
        const std::shared_ptr<const Version> version = reader.version();
        version->lookup(version->feature("movie"), {.ids = ids}, out);
        const auto expected = static_cast<float>(version->step());
        wrong += std::count_if(out.begin(), out.end(), [&](float value) {
          return value != expected;
        });
        wrong += version->number() < newest ? 1 : 0;
        newest = version->number();
        read += 64;
      }
    });
  }
  for (int64_t step = 2; step <= 40; ++step) {
    set_rows(static_cast<float>(step));
    publisher.publish({.step = step});
  }
  ends = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(read, 1000);
}

TEST(ShortTimeSlicesTest, OnlyTheCallingThreadHasThem) {
  utsname system = {};
  int major = 0;
  int minor = 0;
  ASSERT_EQ(::uname(&system), 0);
  ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2);
  if (std::pair(major, minor) < std::pair(6, 12)) {
    GTEST_SKIP() << "Linux has short time slices since 6.12.";
  }
  // As struct sched_attr. Word 0 has the size and the policy, and word 3 the time slice.
  using Attributes = std::array<uint64_t, 7>;
  const auto read = [] {
    Attributes attributes = {};
    EXPECT_EQ(
        ::syscall(
            SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0),
        0);
    return attributes;
  };
  const Attributes before = read();
  Attributes after = {};
  std::thread([&] {
    use_short_time_slices();
    after = read();
  }).join();
  EXPECT_EQ(after[3], 100'000U);
  EXPECT_GT(before[3], after[3]);
  EXPECT_EQ(read(), before);
  after[3] = before[3];
  EXPECT_EQ(after, before);
}

}  // namespace tessera::serving::reader_test
