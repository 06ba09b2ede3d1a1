#pragma once
// The small reference checkpoints with transformers' logits (tools/generate/make_goldens.py), and the
// comparison of a device's logits with them. The same body runs on all devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <numeric>

#include "model/checkpoint/model_files.h"
#include "model/decoder.h"
#include "model/support/files.h"

namespace troupe::model::test {

// Largest allowed error, max |a - b| / max |b| over all logits, by the dtype of the computation.
inline constexpr double kTolerance[kDTypes] = {/* bf16 */ 2e-2, /* f16 */ 5e-3, /* f32 */ 1e-4};

struct Golden {
  std::vector<TokenId> ids;
  std::vector<float> logits;
  std::vector<TokenId> greedy;
};

template <class T>
std::vector<T> values(const Checkpoint& file, const char* name) {
  const auto bytes = read_tensor(*file.find(name));
  std::vector<T> out(bytes->size() / sizeof(T));
  std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

inline Golden load_golden(const std::string& name) {
  const auto file = Checkpoint::open_file(golden_directory(name) / "golden.safetensors");
  return {values<std::int32_t>(*file, "ids"), values<float>(*file, "logits"),
          values<std::int32_t>(*file, "greedy")};
}

struct GoldenCase {
  const char* checkpoint;
  const char* golden;  // folder of the expected logits
};

inline constexpr GoldenCase kGoldenCases[] = {
    {"gqa3_tied", "gqa3_tied"},
    {"gqa3_tied_paddle", "gqa3_tied"},
    {"gqa5_untied", "gqa5_untied"},
    {"gqa5_untied_paddle", "gqa5_untied"},
    {"gqa8_tied", "gqa8_tied"},
    {"moe_shared2", "moe_shared2"},
    {"moe_shared2_paddle", "moe_shared2"},
    {"moe_interval", "moe_interval"},
    {"moe_interval_paddle", "moe_interval"},
    {"moe_end", "moe_end"},
};

// The logits of all positions of a golden prompt, computed in one step.
template <class D>
std::vector<float> logits_of(Decoder<D>& decoder, const Golden& golden) {
  const std::vector<BlockId> blocks{6, 0, 3};
  const int tokens = static_cast<int>(golden.ids.size());
  StepBatch batch;
  batch.tokens = golden.ids;
  batch.sequences = {{blocks.data(), 0, tokens, 0}};
  batch.sample_rows.resize(golden.ids.size());
  std::iota(batch.sample_rows.begin(), batch.sample_rows.end(), 0);
  std::vector<float> logits(golden.logits.size());
  decoder.logits(batch, logits);
  return logits;
}

// The logits of the rows `reads` of a step that runs positions [first, first + count) of the prompt, in other
// blocks.
template <class D>
std::vector<float> logits_of(Decoder<D>& decoder, const Golden& golden, int first, int count,
                             const std::vector<std::int32_t>& reads) {
  const std::vector<BlockId> blocks{1, 4, 5};
  StepBatch batch;
  batch.tokens.assign(golden.ids.begin() + first, golden.ids.begin() + first + count);
  batch.sequences = {{blocks.data(), first, count, 0}};
  batch.sample_rows = reads;
  std::vector<float> logits(reads.size() * static_cast<std::size_t>(decoder.spec().vocab));
  decoder.logits(batch, logits);
  return logits;
}

inline constexpr DecoderLimits kGoldenLimits{.rows = 256, .sequences = 8, .positions = 256, .kv_blocks = 8};

// Expects the largest error to be within kTolerance.
inline void check_logits(const std::vector<float>& logits, const Golden& golden, DType dtype) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(logits[i]) - golden.logits[i]));
    largest = std::max(largest, std::abs(static_cast<double>(golden.logits[i])));
    ASSERT_TRUE(std::isfinite(logits[i]));
  }
  EXPECT_LE(difference / largest, kTolerance[static_cast<int>(dtype)]);
  ::testing::Test::RecordProperty("error", std::to_string(difference / largest));
}

// Expects that steps in which few rows are read give those rows the logits that they have in `all`, of a step
// in which every row is read: the same bits on the Cpu.
template <class D>
void check_read_rows(Decoder<D>& decoder, const Golden& golden, const std::vector<float>& all, DType dtype) {
  const auto vocab = static_cast<std::size_t>(decoder.spec().vocab);
  const auto check = [&](const std::vector<float>& logits, const std::vector<std::int32_t>& positions,
                         const char* step) {
    Golden part;
    std::vector<float> expected;
    for (const std::int32_t position : positions) {
      const auto from = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(position) * vocab),
                 to = from + static_cast<std::ptrdiff_t>(vocab);
      expected.insert(expected.end(), all.begin() + from, all.begin() + to);
      part.logits.insert(part.logits.end(), golden.logits.begin() + from, golden.logits.begin() + to);
    }
    SCOPED_TRACE(step);
    if constexpr (std::same_as<D, Cpu>)
      EXPECT_EQ(logits, expected);
    else
      check_logits(logits, part, dtype);
  };
  const auto tokens = static_cast<std::int32_t>(golden.ids.size());
  check(logits_of(decoder, golden, 0, tokens, {tokens - 1}), {tokens - 1}, "the last row");
  check(logits_of(decoder, golden, 0, tokens, {3, 64, tokens - 1}), {3, 64, tokens - 1}, "three rows");
  // The second piece needs the keys and values that the first one has left in the last layer.
  Golden other = golden;
  std::ranges::reverse(other.ids);
  logits_of(decoder, other, 0, tokens, {});
  logits_of(decoder, golden, 0, 70, {});
  check(logits_of(decoder, golden, 70, tokens - 70, {tokens - 71}), {tokens - 1}, "two pieces");
}

template <class D>
void check_golden(D& device, const GoldenCase& which, DType dtype) {
  const Golden golden = load_golden(which.golden);
  const auto files = open_model({.directory = golden_directory(which.checkpoint).string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  auto weights = Weights<D>::load(device, files->spec, dtype, files->map);
  ASSERT_TRUE(weights.ok()) << weights.status().message;
  auto decoder = Decoder<D>::make(device, files->spec, dtype, std::move(*weights), kGoldenLimits);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  const std::vector<float> logits = logits_of(**decoder, golden);
  check_logits(logits, golden, dtype);
  check_read_rows(**decoder, golden, logits, dtype);
}

}  // namespace troupe::model::test
