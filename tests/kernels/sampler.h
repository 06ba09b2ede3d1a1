#pragma once
// Shared by the tests of sampling: rows and logits in device memory, and a fixture for every device.
#include "kernels/sample.h"

#include <algorithm>
#include <vector>

#include "kernels/batch.h"
#include "kernels/device_under_test.h"

namespace troupe::kernels {

/// Copies rows, their arrays and the logits to the device, samples there, and returns the results. On a GPU
/// every second row has its ids in blocks, as in KV memory.
inline std::vector<SampleResult> sampled(DeviceUnderTest& device, std::vector<SampleRow> rows,
                                         const std::vector<float>& logits, int vocab, int stride,
                                         std::vector<TokenId>* next = nullptr) {
  const auto count = rows.size();
  // One allocation for all arrays that rows point to: thousands of small ones are slow on a GPU.
  constexpr int kBlockIds = 96;  // ids of a block, and what lies between them and the next block's
  std::vector<TokenId> ids, in_blocks;
  std::vector<BlockId> blocks;
  if (device.is_cuda()) {
    std::size_t all = 0;
    for (std::size_t i = 1; i < count; i += 2)
      all += std::size_t(rows[i].known_tokens + kBlockTokens - 1) / kBlockTokens;
    in_blocks.assign(all * kBlockIds, -1);
  }
  std::vector<TokenBias> bias;
  std::vector<std::uint32_t> masks;
  for (const SampleRow& row : rows) {
    if (row.mask != nullptr) masks.insert(masks.end(), row.mask, row.mask + mask_words(vocab));
    ids.insert(ids.end(), row.tokens, row.tokens + row.known_tokens);
    ids.insert(ids.end(), row.banned, row.banned + row.banned_count);
    bias.insert(bias.end(), row.bias, row.bias + row.bias_count);
  }
  auto next_block = BlockId(in_blocks.size() / kBlockIds);  // a sequence's blocks do not lie in its order
  for (std::size_t i = 1; i < count && device.is_cuda(); i += 2) {
    for (int t = 0; t < rows[i].known_tokens; ++t) {
      if (t % kBlockTokens == 0) blocks.push_back(--next_block);
      in_blocks[std::size_t(next_block * kBlockIds + t % kBlockTokens)] = rows[i].tokens[t];
    }
  }
  const Memory in_blocks_there(device, sizeof(TokenId) * (in_blocks.size() + 1)),
      blocks_there(device, sizeof(BlockId) * (blocks.size() + 1));
  device.upload(in_blocks_there.as(), in_blocks.data(), sizeof(TokenId) * in_blocks.size());
  device.upload(blocks_there.as(), blocks.data(), sizeof(BlockId) * blocks.size());
  const Memory ids_there(device, sizeof(TokenId) * (ids.size() + 1));
  const Memory bias_there(device, sizeof(TokenBias) * (bias.size() + 1));
  const Memory masks_there(device, sizeof(std::uint32_t) * (masks.size() + 1));
  const Memory rows_there(device, sizeof(SampleRow) * count), results(device, sizeof(SampleResult) * count);
  const Memory logits_there(device, sizeof(float) * logits.size()),
      next_there(device, sizeof(TokenId) * count);
  device.upload(ids_there.as(), ids.data(), sizeof(TokenId) * ids.size());
  device.upload(bias_there.as(), bias.data(), sizeof(TokenBias) * bias.size());
  device.upload(masks_there.as(), masks.data(), sizeof(std::uint32_t) * masks.size());
  device.upload(logits_there.as(), logits.data(), sizeof(float) * logits.size());
  const std::vector<TokenId> untouched(count, -7);
  device.upload(next_there.as(), untouched.data(), sizeof(TokenId) * count);
  const auto* id_at = ids_there.as<TokenId>();
  const auto* block_at = blocks_there.as<BlockId>();
  const auto* bias_at = bias_there.as<TokenBias>();
  const auto* mask_at = masks_there.as<std::uint32_t>();
  for (std::size_t i = 0; i < count; ++i) {
    SampleRow& row = rows[i];
    row.tokens = id_at;
    if (device.is_cuda() && i % 2 == 1) {
      row.tokens = in_blocks_there.as<TokenId>();
      row.blocks = block_at;
      row.block_ids = kBlockIds;
      block_at += (row.known_tokens + kBlockTokens - 1) / kBlockTokens;
    }
    row.banned = id_at += row.known_tokens;
    id_at += row.banned_count;
    row.bias = bias_at;
    bias_at += row.bias_count;
    if (row.mask != nullptr) {
      row.mask = mask_at;
      mask_at += mask_words(vocab);
    }
    if (next != nullptr) row.next = next_there.as<TokenId>() + i;
  }
  device.upload(rows_there.as(), rows.data(), sizeof(SampleRow) * count);
  const std::vector<SampleResult> blank(count, SampleResult{.token = -7});
  device.upload(results.as(), blank.data(), sizeof(SampleResult) * count);
  run(device, Sample{.results = results.as<SampleResult>(),
                     .rows = rows_there.as<SampleRow>(),
                     .logits = logits_there.as<float>(),
                     .count = int(count),
                     .vocab = vocab,
                     .stride = stride});
  if (next != nullptr) next->assign(next_there.host<TokenId>(), next_there.host<TokenId>() + count);
  return {results.host<SampleResult>(), results.host<SampleResult>() + count};
}

/// The mask that allows these ids.
inline std::vector<std::uint32_t> mask_of(int vocab, const std::vector<TokenId>& ids) {
  std::vector<std::uint32_t> words(mask_words(vocab));
  for (const TokenId id : ids) words[std::size_t(id / 32)] |= 1u << id % 32;
  return words;
}

class Sampler : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (!GetParam().cuda) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  DeviceUnderTest& device() {
    if (!device_) device_ = device_at(GetParam(), 2);
    return *device_;
  }

  SampleResult one(const std::vector<float>& logits, SampleRow row) {
    return sampled(device(), {row}, logits, int(logits.size()), int(logits.size()))[0];
  }

  /// How often each token is drawn at positions 0 … draws - 1.
  std::vector<int> histogram(const std::vector<float>& logits, SampleRow row, int draws) {
    const int vocab = int(logits.size());
    std::vector<int> counts(logits.size());
    std::vector<float> copies(logits.size() * std::size_t(draws));
    std::vector<SampleRow> rows(std::size_t(draws), row);
    for (int i = 0; i < draws; ++i) {
      std::copy(logits.begin(), logits.end(), copies.begin() + std::ptrdiff_t(i) * vocab);
      rows[std::size_t(i)].logits_row = i;
      rows[std::size_t(i)].position = std::uint32_t(i);
    }
    for (const SampleResult& r : sampled(device(), rows, copies, vocab, vocab)) {
      EXPECT_EQ(r.error, SampleError::none);
      ++counts[std::size_t(r.token)];
    }
    return counts;
  }

 private:
  std::unique_ptr<DeviceUnderTest> device_;
};

}  // namespace troupe::kernels
