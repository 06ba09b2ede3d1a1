// What --explain says of the published shapes: which way runs where.
#include "cli/bench/explain.h"

#include <gtest/gtest.h>

namespace troupe::bench {
namespace {

/// Of one op, from its first line to the next op's, in the table that begins with `head`.
std::string entry(const std::string& text, const std::string& head, const std::string& op) {
  const std::size_t table = text.find("\n" + head + "\n");
  if (table == std::string::npos) return "no table " + head;
  const std::size_t begin = text.find("\n  " + op, table);
  if (begin == std::string::npos) return "no entry " + op;
  const std::size_t shape_end = text.find('\n', begin + 1), end = text.find('\n', shape_end + 1);
  return text.substr(begin + 1, end - begin - 1);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Explain : public testing::Test {
 protected:
  static std::string of(const std::string& model,
                        config::DTypeOption dtype = config::DTypeOption::automatic) {
    config::Options options;
    options.model.directory = std::string(TROUPE_TEST_DATA) + "/../../bench/models/" + model;
    options.model.dtype = dtype;
    const auto text = explain_model(options, {1, 8, 64, 512});
    return text.ok() ? *text : text.status().message;
  }
};

TEST_F(Explain, TheDenseModel) {
  const std::string text = of("ERNIE-4.5-0.3B");
  EXPECT_TRUE(has(text, "bfloat16; ")) << text;
  if (!cuda_usable().ok()) {
    EXPECT_TRUE(has(text, "no GPU here, an H200 is assumed (132 multiprocessors")) << text;
  }
  if (cuda_usable().ok()) GTEST_SKIP() << "The lines below are an H200's.";
  for (const char* table : {"decode, 1 row", "decode, 8 rows"}) {
    EXPECT_TRUE(has(entry(text, table, "qkv"), "strips: 132 blocks of 20 outputs")) << text;
    EXPECT_TRUE(has(entry(text, table, "dense tail"), "norms in halves")) << text;
    EXPECT_TRUE(has(entry(text, table, "attention "), "decode (one token each)")) << text;
    EXPECT_TRUE(has(entry(text, table, "lm_head"), "stream: ")) << text;
  }
  EXPECT_TRUE(has(entry(text, "decode, 1 row", "  gate_up"), "copy interval 70 cycles per KiB")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "  gate_up"), "copy interval 60 cycles per KiB")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 64 rows", "dense tail"), "norms in halves")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 64 rows", "  gate_up"), "slabs: ")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 512 rows", "dense tail"), "op by op")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 512 rows", "down"), "wgmma: ")) << text;
  EXPECT_TRUE(has(entry(text, "prefill, a prompt of 512 tokens", "attention "), "flash")) << text;
  EXPECT_TRUE(has(entry(text, "prefill, a prompt of 512 tokens", "lm_head"), "1 row")) << text;
  EXPECT_FALSE(has(text, "[slow]")) << text;
}

TEST_F(Explain, TheMixtures) {
  if (cuda_usable().ok()) GTEST_SKIP() << "The lines below are an H200's.";
  const std::string text = of("ERNIE-4.5-21B-A3B");
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "qkv"), "clusters of 2, copy interval 53")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "experts gate_up"), "66 × 3072 × 2560 bfloat16, 64 rows"))
      << text;
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "experts down"), "stream: ")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 512 rows", "experts down"), "wgmma: ")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "routing"), "clusters")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 8 rows", "dense tail"), "op by op")) << text;
  EXPECT_FALSE(has(text, "[slow]")) << text;

  const std::string large = of("ERNIE-4.5-300B-A47B");
  EXPECT_TRUE(has(entry(large, "decode, 1 row", "attention out"), "stream: ")) << large;
  EXPECT_FALSE(has(large, "strips: ")) << "no product of it nearly fits shared memory";
}

TEST_F(Explain, WhatIsSlowIsMarked) {
  const std::string text = of("ERNIE-4.5-21B-A3B", config::DTypeOption::float32);
  EXPECT_TRUE(has(entry(text, "decode, 1 row", "qkv"), "generic")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 1 row", "qkv"), "[slow]")) << text;
  EXPECT_TRUE(has(entry(text, "decode, 1 row", "attention "), "[slow]")) << text;
}

}  // namespace
}  // namespace troupe::bench
