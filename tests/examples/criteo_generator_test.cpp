// SPDX-License-Identifier: Apache-2.0
#include "examples/click_logs/criteo_generator.h"
#include "packages/data/tests/area_under_curve.h"
#include "tests/small_files.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <zlib.h>

namespace tessera::test::criteo_generator_test {

using click_logs::CriteoGenerator;
using click_logs::CriteoGeneratorOptions;

struct Clicks {
  at::Tensor probabilities;
  at::Tensor labels;
  std::string text;
};

Clicks make_clicks(const CriteoGeneratorOptions& options) {
  const CriteoGenerator generator(options);
  Clicks clicks{
      at::empty({options.examples}), at::empty({options.examples}), {}};
  for (int64_t i = 0; i < options.examples; ++i) {
    const size_t begin = clicks.text.size();
    clicks.probabilities.mutable_data_ptr<float>()[i] =
        generator.append_line(i, clicks.text);
    clicks.labels.mutable_data_ptr<float>()[i] =
        clicks.text[begin] == '1' ? 1.0F : 0.0F;
  }
  return clicks;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

std::string gunzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  std::array<char, 4096> buffer;
  for (int n = 0; (n = gzread(file, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  gzclose(file);
  return text;
}

TEST(CriteoGeneratorTest, BestModelHasTheIntendedAreaUnderCurve) {
  for (const int64_t seed : {1, 2, 3, 4, 5, 6}) {
    const Clicks clicks = make_clicks({.examples = 40'000, .seed = seed});
    const double area = area_under_curve(clicks.probabilities, clicks.labels);
    EXPECT_GT(area, 0.78) << "seed " << seed;
    EXPECT_LT(area, 0.85) << "seed " << seed;
    EXPECT_NEAR(clicks.labels.mean().item<double>(), 0.25, 0.02);
  }
}

TEST(CriteoGeneratorTest, LabelsFollowTheProbabilities) {
  const Clicks clicks = make_clicks({.examples = 100'000, .seed = 3});
  for (int bin = 0; bin < 8; ++bin) {
    const double low = bin / 10.0;
    const at::Tensor inside = clicks.probabilities.ge(low).logical_and(
        clicks.probabilities.lt(low + 0.1));
    const double count = inside.sum().item<double>();
    ASSERT_GT(count, 200);
    const double expected =
        clicks.probabilities.masked_select(inside).mean().item<double>();
    const double deviation = std::sqrt(expected * (1 - expected) / count);
    EXPECT_NEAR(
        clicks.labels.masked_select(inside).mean().item<double>(),
        expected,
        4 * deviation)
        << "from " << low;
  }
}

TEST(CriteoGeneratorTest, EffectsFollowTheirStrength) {
  const Clicks chance =
      make_clicks({.examples = 1000, .effect_strength = 0, .click_rate = 0.1});
  EXPECT_NEAR(chance.probabilities.min().item<double>(), 0.1, 1e-4);
  EXPECT_NEAR(chance.probabilities.max().item<double>(), 0.1, 1e-4);
  const Clicks strong = make_clicks({.examples = 20'000, .effect_strength = 3});
  EXPECT_GT(area_under_curve(strong.probabilities, strong.labels), 0.88);
}

TEST(CriteoGeneratorTest, WritesTheFormat) {
  const Clicks clicks = make_clicks(
      {.examples = 20'000,
       .vocabulary_sizes = std::vector<int64_t>(26, 3),
       .missing_rate = 0.2});
  std::array<std::map<std::string, int>, 26> categories;
  int64_t missing = 0;
  bool has_negative = false;
  std::vector<std::string> lines = split(clicks.text, '\n');
  ASSERT_EQ(lines.back(), "");
  lines.pop_back();
  ASSERT_EQ(lines.size(), 20'000U);
  for (const std::string& line : lines) {
    const std::vector<std::string> fields = split(line, '\t');
    ASSERT_EQ(fields.size(), 40U);
    for (size_t i = 1; i < 40; ++i) {
      missing += fields[i].empty() ? 1 : 0;
      if (i > 13 && !fields[i].empty()) {
        ASSERT_EQ(fields[i].size(), 8U);
        ++categories[i - 14][fields[i]];
      }
    }
    has_negative = has_negative || fields[2].starts_with("-");
  }
  EXPECT_TRUE(has_negative);
  EXPECT_NEAR(static_cast<double>(missing) / (20'000 * 39), 0.2, 0.005);
  for (const auto& names : categories) {
    ASSERT_EQ(names.size(), 3U);
    std::vector<int> counts;
    for (const auto& [name, count] : names) {
      counts.push_back(count);
    }
    std::sort(counts.rbegin(), counts.rend());
    // The counts are as 1 : 1/2 : 1/3.
    EXPECT_NEAR(counts[0] / 16'000.0, 6.0 / 11, 0.02);
    EXPECT_NEAR(counts[1] / 16'000.0, 3.0 / 11, 0.02);
  }
}

TEST(CriteoGeneratorTest, GeneratesTheSameOnEveryMachine) {
  const CriteoGenerator generator({.seed = 42});
  std::string text;
  const float probability = generator.append_line(123'456, text);
  EXPECT_EQ(
      text,
      "0\t\t21\t7\t11\t170\t424\t\t52\t440\t3\t467\t7221\t7321\t"
      "95e0a4fb\t0d3bf2c9\t58479edf\tae487d6e\t4136a639\t3e34a810\t"
      "6ebe9ae5\t1278e772\tcc70f338\t22327d6c\t78d9cba2\t67b981bb\t"
      "3013864e\t0f1dae53\t282d1286\teab6fa5e\t411c3e88\t51424331\t"
      "5058ed17\tbd95c587\t3e236f8c\t33f54ada\t3c890531\ta78affef\t"
      "49357cc8\t310b9f6a\n");
  EXPECT_FLOAT_EQ(probability, 0.070622683F);
}

TEST(CriteoGeneratorTest, FilesStartWithTheFirstExample) {
  const TemporaryFolder folder;
  const CriteoGeneratorOptions all{.examples = 3000, .seed = 7};
  const Clicks clicks = make_clicks(all);
  CriteoGeneratorOptions tail = all;
  tail.examples = 1000;
  tail.first_example = 2000;
  const at::Tensor probabilities =
      CriteoGenerator(all).write(folder / "all.tsv");
  EXPECT_EQ(read_text(folder / "all.tsv"), clicks.text);
  EXPECT_TENSOR_EQ(probabilities, clicks.probabilities);
  EXPECT_TENSOR_EQ(
      CriteoGenerator(tail).write(folder / "tail.gz"),
      clicks.probabilities.slice(0, 2000));
  const std::string compressed = read_text(folder / "tail.gz");
  EXPECT_TRUE(compressed.starts_with("\x1f\x8b"));
  const std::string text = gunzip(folder / "tail.gz");
  EXPECT_FALSE(text.empty());
  EXPECT_TRUE(clicks.text.ends_with("\n" + text));
}

// Ten examples stay in a buffer until the end. Many examples are written earlier.
TEST(CriteoGeneratorTest, FailedWritesKeepTheOldFile) {
  for (const int64_t examples : {10, 20'000}) {
    for (const char* name : {"clicks.tsv", "clicks.gz"}) {
      const TemporaryFolder folder;
      const std::string path = folder.write(name, "before");
      {
        const SmallFiles small(0);
        EXPECT_VALUE_ERROR(
            CriteoGenerator({.examples = examples}).write(path),
            "can't write '" + path + "': File too large. Choose a path");
      }
      EXPECT_EQ(read_text(path), "before");
      EXPECT_EQ(
          std::distance(
              std::filesystem::directory_iterator(folder.path()),
              std::filesystem::directory_iterator()),
          1);
    }
  }
}

TEST(CriteoGeneratorTest, ReplacesOnlyRegularFiles) {
  const TemporaryFolder folder;
  const CriteoGenerator generator({.examples = 10});
  const std::string path = folder.write("clicks", "before");
  generator.write(path);
  EXPECT_EQ(read_text(path), make_clicks({.examples = 10}).text);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp-tessera"));
  EXPECT_VALUE_ERROR(
      generator.write("/dev/null"), "it exists, but is not a regular file");
  std::filesystem::create_directory(folder / "there");
  EXPECT_VALUE_ERROR(
      generator.write(folder / "there"),
      "it exists, but is not a regular file");
  EXPECT_FALSE(std::filesystem::exists(folder / "there.tmp-tessera"));
}

TEST(CriteoGeneratorTest, ExampleNumbersMustFitIntoInt64) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const TemporaryFolder folder;
  const at::Tensor probabilities =
      CriteoGenerator({.examples = 2, .first_example = kMax - 2})
          .write(folder / "last");
  EXPECT_EQ(probabilities.numel(), 2);
  EXPECT_VALUE_ERROR(
      CriteoGenerator({.examples = 2, .first_example = kMax - 1}),
      "first_example must be at most 2^63 - 1 - examples, but got "
      "9223372036854775806 with 2 examples");
}

TEST(CriteoGeneratorTest, RefusesOptionsOutOfRange) {
  expect_refusals<CriteoGeneratorOptions>(
      {{{.examples = -1}, "examples must be >= 0, but got -1"},
       {{.vocabulary_sizes = {1, 2}},
        "expected 26 vocabulary_sizes, one per column, but got 2"},
       {{.vocabulary_sizes = std::vector<int64_t>(26, 0)},
        "vocabulary_sizes must be in [1, 1e+07], but got 0"},
       {{.missing_rate = NAN}, "missing_rate must be in [0, 1]"},
       {{.click_rate = 1}, "click_rate must be in (0, 1)"}},
      [](const CriteoGeneratorOptions& options) {
        const CriteoGenerator generator(options);
      });
  const CriteoGenerator generator({.examples = 1});
  std::string text;
  EXPECT_VALUE_ERROR(
      generator.append_line(-1, text), "number of an example, >= 0");
  EXPECT_VALUE_ERROR(
      generator.write("/nowhere/clicks.tsv"),
      "can't write '/nowhere/clicks.tsv': No such file");
}

}  // namespace tessera::test::criteo_generator_test
