#pragma once
// The pictures of tests/data/media, what Pillow makes of them, and pictures that are made here.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "media/picture.h"

namespace troupe::media::testing {

using Buffer = std::vector<std::uint8_t>;

inline std::string sample_path(const std::string& name) {
  return std::string(TROUPE_TEST_DATA) + "/media/" + name;
}

inline Buffer sample(const std::string& name) {
  std::ifstream file(sample_path(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The member `key` of a file.
inline nlohmann::json sample_json(const std::string& name, const char* key) {
  std::ifstream file(sample_path(name));
  return nlohmann::json::parse(file)[key];
}

inline std::string sha256(std::span<const std::uint8_t> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  std::string out;
  for (unsigned i = 0; i < size; ++i) {
    out += "0123456789abcdef"[digest[i] >> 4];
    out += "0123456789abcdef"[digest[i] & 15];
  }
  return out;
}

/// Red, green and blue alone.
inline Buffer rgb_of(const Picture& picture) {
  Buffer out;
  out.reserve(picture.bytes() / 4 * 3);
  for (std::size_t at = 0; at < picture.bytes(); at += kPixelBytes)
    out.insert(out.end(), picture.row(0) + at, picture.row(0) + at + 3);
  return out;
}

/// The picture that make_media_samples.py calls scene().
inline Picture scene(int width, int height) {
  Picture out(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::int64_t noise =
          (std::int64_t{x} * 7919 + std::int64_t{y} * 104729 + std::int64_t{x} * y * 31) % 64;
      const std::int64_t planes[3] = {std::int64_t{x} * 255 / std::max(width - 1, 1),
                                      std::int64_t{y} * 255 / std::max(height - 1, 1),
                                      (x * 7 + y * 13) % 256};
      const bool marked = y >= height / 3 && y < height / 2 && x >= width / 4 && x < width / 2;
      constexpr std::uint8_t kMark[3] = {255, 0, 40};
      std::uint8_t* pixel = out.row(y) + static_cast<std::size_t>(x) * kPixelBytes;
      for (int i = 0; i < 3; ++i)
        pixel[i] = marked ? kMark[i] : static_cast<std::uint8_t>((planes[i] + noise) % 256);
      pixel[3] = 7;
    }
  }
  return out;
}

}  // namespace troupe::media::testing
