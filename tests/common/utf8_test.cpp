// SPDX-License-Identifier: Apache-2.0
#include "src/common/text.h"
#include "tests/test_util.h"

namespace tessera::test::utf8_test {

// Encodes the code point in `length` bytes, even if fewer would be enough.
std::string encode(uint32_t code, int length) {
  if (length == 1) {
    return {static_cast<char>(code)};
  }
  std::string text;
  for (int i = length - 1; i > 0; --i) {
    text.push_back(static_cast<char>(0x80 | (code >> 6 * (i - 1) & 0x3f)));
  }
  text.insert(
      text.begin(),
      static_cast<char>((0xf00 >> length & 0xff) | code >> 6 * (length - 1)));
  return text;
}

int shortest(uint32_t code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

TEST(Utf8Test, TakesEveryCodePointInItsShortestForm) {
  ASSERT_EQ(encode(0xe9, 2), "é");
  ASSERT_EQ(encode(0x20ac, 3), "€");
  ASSERT_EQ(encode(0x1f600, 4), "😀");
  for (uint32_t code = 0; code < 0x200000; ++code) {
    const bool is_valid = code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    const int length = shortest(code);
    const std::string text = encode(code, length);
    ASSERT_EQ(is_utf8(text), is_valid) << code;
    ASSERT_EQ(is_utf8("a" + text + "b"), is_valid) << code;
    for (int longer = length + 1; longer <= 4; ++longer) {
      ASSERT_FALSE(is_utf8(encode(code, longer))) << code;
    }
  }
}

TEST(Utf8Test, RefusesWhatIsCutOff) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8(std::string(1, '\0')));
  for (const std::string text : {"é", "€", "😀"}) {
    for (size_t length = 1; length < text.size(); ++length) {
      EXPECT_FALSE(is_utf8(text.substr(0, length)));
      EXPECT_FALSE(is_utf8(text.substr(0, length) + "a"));
      EXPECT_FALSE(is_utf8(text.substr(0, length) + text));
      EXPECT_FALSE(is_utf8(text.substr(length)));
    }
  }
}

TEST(Utf8Test, AgreesWithJson) {
  const auto has_json = [](const std::string& text) {
    try {
      return !nlohmann::json(text).dump().empty();
    } catch (const nlohmann::json::type_error&) {
      return false;
    }
  };
  // The bytes at the limits of the valid ranges.
  const std::vector<int> bytes{0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                               0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xed, 0xee, 0xef,
                               0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xff};
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    ASSERT_EQ(is_utf8(text), has_json(text)) << testing::PrintToString(text);
    if (text.size() < 3) {
      for (const int byte : bytes) {
        texts.push_back(text + static_cast<char>(byte));
      }
    }
  }
}

}  // namespace tessera::test::utf8_test
