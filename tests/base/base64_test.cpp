#include "base/base64.h"

#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

std::string encoded(std::string_view bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 6) {
    unsigned value = 0;
    for (std::size_t i = bit; i < bit + 6; ++i) {
      const unsigned byte = i / 8 < bytes.size() ? static_cast<unsigned char>(bytes[i / 8]) : 0u;
      value = value * 2 + (byte >> (7 - i % 8)) % 2;
    }
    out += kDigits[value];
  }
  while (out.size() % 4 != 0) out += '=';
  return out;
}

TEST(Base64, TheVectorsOfTheRfc) {
  for (const auto& [text, bytes] : {std::pair{"", ""},
                                    {"Zg==", "f"},
                                    {"Zm8=", "fo"},
                                    {"Zm9v", "foo"},
                                    {"Zm9vYg==", "foob"},
                                    {"Zm9vYmE=", "fooba"},
                                    {"Zm9vYmFy", "foobar"},
                                    {"Zg", "f"},
                                    {"Zm9vYmE", "fooba"}}) {
    const auto decoded = decode_base64(text);
    ASSERT_TRUE(decoded.ok()) << text << ": " << decoded.status().message;
    EXPECT_EQ(*decoded, bytes) << text;
  }
}

TEST(Base64, BytesOfEveryLength) {
  std::mt19937 draw(3);
  for (std::size_t length = 0; length < 300; ++length) {
    std::string bytes(length, '\0');
    for (char& c : bytes) c = static_cast<char>(draw());
    const auto decoded = decode_base64(encoded(bytes));
    ASSERT_TRUE(decoded.ok()) << length << ": " << decoded.status().message;
    EXPECT_EQ(*decoded, bytes) << length;
  }
}

TEST(Base64, AFaultIsNamedWithItsOffset) {
  const std::pair<std::string, std::string> cases[] = {{"Zm9v YmFy", "offset 4: byte 32"},
                                                       {"Zm9vYm\nFy", "offset 6: byte 10"},
                                                       {"Zm9-", "offset 3: '-'"},
                                                       {"Zm_v", "offset 2: '_'"},
                                                       {"Zg==Zg==", "offset 2: '='"},
                                                       {"Z===", "offset 1: '='"},
                                                       {"====", "offset 0: '='"},
                                                       {"=", "offset 0: '='"},
                                                       {"Z", "offset 0: it ends"},
                                                       {"Zm9vY", "offset 4: it ends"},
                                                       {"Zh==", "offset 1: it ends"},
                                                       {"Zm9=", "offset 2: it ends"},
                                                       {std::string("Zm\0v", 4), "offset 2: byte 0"},
                                                       {"Zm9v\xc3\xa4==", "offset 4: byte 195"},
                                                       {"Zm9vZg=", "offset 6: '='"}};
  for (const auto& [text, expected] : cases) {
    const auto decoded = decode_base64(text);
    EXPECT_EQ(decoded.status().code, Code::invalid_argument) << text;
    EXPECT_NE(decoded.status().message.find(expected), std::string::npos)
        << text << ": " << decoded.status().message;
  }
}

TEST(Base64, WritesWhatItReads) {
  std::mt19937 random(7);
  for (std::size_t size = 0; size < 50; ++size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::string out = "x";
    append_base64(out, bytes);
    EXPECT_EQ(out, "x" + encoded(bytes));
  }
}

}  // namespace
}  // namespace troupe
