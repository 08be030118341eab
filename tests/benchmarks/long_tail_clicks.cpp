// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/long_tail_clicks.h"

#include "src/common/random_key.h"
#include "tests/benchmarks/torch_benchmark.h"

namespace {

constexpr double kBias = -1.2;

// The columns whose hidden numbers are multiplied.
constexpr std::array<std::pair<size_t, size_t>, 4> kProducts{
    {{0, 6}, {1, 8}, {2, 9}, {3, 4}}};
constexpr double kHiddenDeviation = 0.5;
constexpr double kSlopeDeviation = 0.3;

// Each purpose has its own random numbers. Columns and hidden numbers are added to it.
enum Purpose : uint64_t {
  kId = 100,
  kEffect = 200,
  kHidden = 300,
  kOtherHidden = 400,
  kNumber = 500,
  kSlope = 600,
  kClick = 700
};

// Returns the id whose cumulative frequency is `u`, where frequencies fall with
// k^-exponent. Ids are counted from 1.
int64_t id_at(const LongTailClicks::IdColumn& column, double u) {
  const double power = 1.0 - column.exponent;
  const double end = column.ids + 1.0;
  const double id = std::abs(power) < 1e-9
      ? std::pow(end, u)
      : std::pow((std::pow(end, power) - 1.0) * u + 1.0, 1.0 / power);
  return static_cast<int64_t>(id);
}

}  // namespace

double LongTailClicks::uniform(uint64_t purpose, uint64_t item) const {
  const uint64_t key =
      tessera::mix_bits(seed_ + purpose * 0x9E3779B97F4A7C15ULL);
  const uint64_t bits =
      tessera::mix_bits(key + item * 0xD1342543DE82EF95ULL) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

double LongTailClicks::normal(uint64_t purpose, uint64_t item) const {
  double sum = 0.0;
  for (uint64_t i = 0; i < 4; ++i) {
    sum += uniform(purpose, item * 4 + i) - 0.5;
  }
  return sum * std::sqrt(3.0);  // the variance of the sum is 1/3
}

LongTailClicks::Examples LongTailClicks::make(int64_t first, int64_t count)
    const {
  Examples examples{
      .clicks = at::empty({count}, at::kFloat),
      .probabilities = at::empty({count}, at::kFloat)};
  const auto example = [&](int64_t i) {
    return static_cast<uint64_t>(first + i);
  };
  std::vector<double> logits(count, kBias);
  std::vector<at::Tensor> ids;
  for (size_t c = 0; c < kIdColumns.size(); ++c) {
    ids.push_back(at::empty({count}, at::kLong));
    auto* id = ids.back().mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      id[i] = id_at(kIdColumns[c], uniform(kId + c, example(i)));
      logits[i] += kIdColumns[c].effect *
          normal(kEffect + c, static_cast<uint64_t>(id[i]));
    }
    examples.columns.add(kIdColumns[c].name, {.values = ids.back()});
  }
  for (const auto& [left, right] : kProducts) {
    const auto* a = ids[left].const_data_ptr<int64_t>();
    const auto* b = ids[right].const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      for (const uint64_t hidden : {kHidden, kOtherHidden}) {
        logits[i] += kHiddenDeviation * kHiddenDeviation *
            normal(hidden + left, static_cast<uint64_t>(a[i])) *
            normal(hidden + right, static_cast<uint64_t>(b[i]));
      }
    }
  }
  for (uint64_t n = 0; n < kNumbers; ++n) {
    const at::Tensor numbers = at::empty({count}, at::kFloat);
    auto* number = numbers.mutable_data_ptr<float>();
    const double slope = kSlopeDeviation * normal(kSlope + n, 0);
    for (int64_t i = 0; i < count; ++i) {
      const double value = 2.0 * uniform(kNumber + n, example(i)) - 1.0;
      number[i] = static_cast<float>(value);
      logits[i] += slope * value;
    }
    examples.columns.add(fmt::format("number_{}", n), {.values = numbers});
  }
  auto* click = examples.clicks.mutable_data_ptr<float>();
  auto* probability = examples.probabilities.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const double p = 1.0 / (1.0 + std::exp(-logits[i]));
    probability[i] = static_cast<float>(p);
    click[i] = uniform(kClick, example(i)) < p ? 1.0F : 0.0F;
  }
  return examples;
}
