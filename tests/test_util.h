// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/test_headers.h"

#include <typeinfo>

// Expects that the statement throws exactly this type, and that its message, without a
// backtrace, contains the text. If the statement has commas inside
// braces, write parentheses around it.
#define EXPECT_RAISES(error, statement, text) \
  ::tessera::test::expect_raises<error>(      \
      __FILE__, __LINE__, text, [&]() { statement; })
#define EXPECT_VALUE_ERROR(statement, text) \
  EXPECT_RAISES(c10::ValueError, statement, text)
#define EXPECT_TYPE_ERROR(statement, text) \
  EXPECT_RAISES(c10::TypeError, statement, text)
#define EXPECT_INDEX_ERROR(statement, text) \
  EXPECT_RAISES(c10::IndexError, statement, text)
#define EXPECT_TORCH_ERROR(statement, text) \
  EXPECT_RAISES(c10::Error, statement, text)
#define EXPECT_INVALID_ARGUMENT(statement, text) \
  EXPECT_RAISES(std::invalid_argument, statement, text)

#define EXPECT_CONTAINS(text, part) \
  EXPECT_PRED_FORMAT2(::tessera::test::contains, text, part)

// Compares shapes and values. A NaN equals nothing.
#define EXPECT_TENSOR_EQ(actual, expected) \
  EXPECT_PRED_FORMAT2(::tessera::test::is_equal, actual, expected)
#define ASSERT_TENSOR_EQ(actual, expected) \
  ASSERT_PRED_FORMAT2(::tessera::test::is_equal, actual, expected)

namespace tessera::test {

using Texts = std::vector<std::string>;

template <class Error, class Statement>
void expect_raises(
    const char* file,
    int line,
    const std::string& text,
    Statement statement) {
  const std::string expected = std::string(typeid(Error).name()) +
      " with the text:\n  " + text + "\nbut got ";
  try {
    statement();
  } catch (const std::exception& error) {
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    const std::string message =
        of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
    if (typeid(error) != typeid(Error) ||
        message.find(text) == std::string::npos) {
      ADD_FAILURE_AT(file, line) << "expected " << expected
                                 << typeid(error).name() << ":\n  " << message;
    }
    return;
  }
  ADD_FAILURE_AT(file, line) << "expected " << expected << "no error";
}

/// An input that is refused, and the text of the error.
template <class Input>
struct Refusal {
  Input input = {};
  std::string text = {};
};

/// Expects that `action` raises this error with the text of the row for each input.
template <class Input, class Error = c10::ValueError, class Action>
void expect_refusals(
    const std::vector<Refusal<Input>>& rows,
    const Action& action) {
  for (const Refusal<Input>& row : rows) {
    SCOPED_TRACE(row.text);
    EXPECT_RAISES(Error, action(row.input), row.text);
  }
}

inline testing::AssertionResult contains(
    const char* /*text_name*/,
    const char* /*part_name*/,
    const std::string& text,
    const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
      << "expected the text:\n  " << part << "\nin:\n  " << text;
}

inline testing::AssertionResult is_equal(
    const char* actual_name,
    const char* expected_name,
    const at::Tensor& actual,
    const at::Tensor& expected) {
  if (at::equal(actual, expected)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
      << "expected " << actual_name << ":\n"
      << actual << "\nto equal " << expected_name << ":\n"
      << expected;
}

/// Expects equal shapes, and |actual - expected| <= atol + rtol * |expected| for
/// every element. NaN equals NaN. Prints the worst element.
inline void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double rtol = 1e-5,
    double atol = 1e-6) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const at::Tensor actual_flat =
      actual.detach().to(at::kDouble).contiguous().view({-1});
  const at::Tensor expected_flat =
      expected.detach().to(at::kDouble).contiguous().view({-1});
  const double* actual_data = actual_flat.const_data_ptr<double>();
  const double* expected_data = expected_flat.const_data_ptr<double>();
  int64_t worst = -1;
  double worst_excess = 0.0;
  for (int64_t i = 0; i < actual_flat.numel(); ++i) {
    if (actual_data[i] == expected_data[i] ||
        (std::isnan(actual_data[i]) && std::isnan(expected_data[i]))) {
      continue;
    }
    double excess = std::abs(actual_data[i] - expected_data[i]) -
        (atol + rtol * std::abs(expected_data[i]));
    if (std::isnan(excess)) {
      excess = std::numeric_limits<double>::infinity();
    }
    if (excess > worst_excess) {
      worst = i;
      worst_excess = excess;
    }
  }
  EXPECT_EQ(worst, -1) << "element " << worst << " of shape " << actual.sizes()
                       << " is " << actual_data[worst] << " instead of "
                       << expected_data[worst] << " (rtol " << rtol << ", atol "
                       << atol << ")";
}

/// The items of a list such as "a, b c".
inline Texts listed(std::string_view list) {
  Texts items;
  size_t end = 0;
  while ((end = list.find(", ")) != std::string_view::npos) {
    items.emplace_back(list.substr(0, end));
    list.remove_prefix(end + 2);
  }
  items.emplace_back(list);
  return items;
}

inline at::Tensor int64s(std::initializer_list<int64_t> values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

inline at::Tensor int32s(std::initializer_list<int32_t> values) {
  return at::tensor(at::ArrayRef<int32_t>(values), at::kInt);
}

inline at::Tensor floats(std::initializer_list<float> values) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat);
}

/// The archive of a module, an optimizer or tensors.
template <class Saved>
std::string bytes_of(const Saved& saved) {
  std::ostringstream stream;
  torch::save(saved, stream);
  return std::move(stream).str();
}

/// Saves `from`, and loads the archive into `to`.
template <class From, class To>
void copy_by_archive(const From& from, To& to) {
  std::istringstream stream(bytes_of(from));
  torch::load(to, stream);
}

template <class Holder>
void load_bytes(Holder& holder, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(holder, stream);
}

inline torch::serialize::InputArchive archive_of(const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

inline torch::serialize::InputArchive reread(
    torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return archive_of(stream.str());
}

template <class Holder>
Holder clone_of(const Holder& layer) {
  return Holder(std::dynamic_pointer_cast<typename Holder::ContainedType>(
      layer->clone()));
}

/// Sets the number of intra-op threads while it exists.
class Threads {
 public:
  explicit Threads(int count) {
    at::set_num_threads(count);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    at::set_num_threads(before_);
  }

 private:
  int before_ = at::get_num_threads();
};

/// Collects LibTorch's warnings while it exists.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    texts.push_back(warning.msg());
  }

  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// Calls `work` with the numbers of as many threads, in these threads.
template <class Work>
void run_in_threads(size_t count, const Work& work) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] { work(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// The number in a variable of the environment, which makes some tests longer.
inline int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace tessera::test

namespace tessera {

// Tests in all namespaces use these helpers.
using namespace test;  // NOLINT(google-build-using-namespace)

}  // namespace tessera
