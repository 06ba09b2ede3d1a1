#pragma once
// Sampling: from logits to tokens. Logit processors, filters, the draw, and log-probabilities.
//
// Order: raw logprobs · logit_bias · ban · repetition penalty (prompt and output: positive logits are
// divided, others multiplied) · frequency and presence penalties (output) · mask · temperature · min_p ·
// top_k · top_p · draw. A token outside the mask is never the result, whatever the other processors did to
// those inside: banned tokens are drawn when the mask leaves no others.
//
// The draw is the same on every device and instruction set, independent of the order of sums: the weights
// w[v] = exp((z[v] - max z) / temperature) are rounded to multiples of 2^-30 (sampling_weight.h defines the
// exact bits), so all filters and cumulative sums are integer arithmetic. The token is the first, in id
// order, whose cumulative kept weight exceeds u * (sum of kept weights), where u is 32 Philox bits / 2^32.
// Among weights equal to a filter's threshold the lowest ids are kept. With temperature 0 or top_k 1 the
// token is the largest logit, the lowest id among equals.
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "gpu/device.h"

namespace troupe::kernels {

/// Most top entries in a SampleResult; TopLogprobs (top_logprobs.h) gives more.
inline constexpr int kMaxTopLogprobs = 20;

/// The logit of a banned token: it is never drawn while any other token is left.
inline constexpr float kBannedLogit = -1e10f;

/// Words of a mask: a bit for each token of the vocabulary.
constexpr std::size_t mask_words(int vocab) { return (static_cast<std::size_t>(vocab) + 31) / 32; }

struct TokenBias {
  TokenId token = 0;
  float bias = 0;
};

/// One row that samples. Ids in [0, vocab); pointers are device memory and may be null when their count is 0.
struct SampleRow {
  std::int32_t logits_row = 0;  ///< -1: a padding row; its result is not written
  float temperature = 1;        ///< >= 0
  float top_p = 1;              ///< in (0, 1]; 1 is off
  float min_p = 0;              ///< in [0, 1]; 0 is off
  std::int32_t top_k = 0;       ///< 0 is off
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;  ///< output tokens before this one
  /// The sequence so far; read only when a penalty is set. With `blocks`, which only Cuda takes: the ids of
  /// block 0; those of token i lie blocks[i / 64] * block_ids + i % 64 behind it.
  const TokenId* tokens = nullptr;
  const BlockId* blocks = nullptr;
  std::int64_t block_ids = 0;
  std::int32_t prompt_tokens = 0;   ///< of them, the prompt
  std::int32_t known_tokens = 0;    ///< prompt and output together
  const TokenId* banned = nullptr;  ///< stop ids while position < min_tokens; else count 0
  std::int32_t banned_count = 0;
  const TokenBias* bias = nullptr;
  std::int32_t bias_count = 0;
  /// mask_words(vocab) words: bit v % 32 of word v / 32 allows token v, at least one of them. Null: all are
  /// allowed.
  const std::uint32_t* mask = nullptr;
  std::int32_t logprobs = -1;  ///< of raw logits: -1 none; 0 the token's; N the token's and the top N
  TokenId* next = nullptr;     ///< also receives the token (0 on error): the next step's input
};

enum class SampleError : std::int32_t { none = 0, not_finite };

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// The result of one row. With an error the token is 0 and meaningless.
struct SampleResult {
  TokenId token = 0;
  SampleError error = SampleError::none;
  float logprob = 0;                  ///< of the token; when row.logprobs >= 0
  std::int32_t top_count = 0;         ///< min(row.logprobs, vocab, kMaxTopLogprobs)
  TopLogprob top[kMaxTopLogprobs]{};  ///< most likely first; lowest id first among equals
};

/// Logits that are not finite (NaN or infinity, before the processors) are an error of that row only.
struct Sample {
  SampleResult* results = nullptr;  ///< (rows)
  const SampleRow* rows = nullptr;  ///< (rows)
  float* logits = nullptr;  ///< (…, stride); rows that sample may be overwritten. One row may be named once
  int count = 0;            ///< rows
  int vocab = 0;
  int stride = 0;  ///< elements between logits rows: padded(vocab)
};

void run(Cpu& device, const Sample& op);
void run(Cuda& device, const Sample& op);

/// log-softmax of raw logits at a known token, and the top N: logprobs of prompt tokens.
struct ScoreRow {
  std::int32_t logits_row = 0;
  TokenId token = 0;
  std::int32_t logprobs = 0;  ///< top entries, at least 0
};

/// Fills token, logprob, top and error of each result; logits are only read.
struct Score {
  SampleResult* results = nullptr;  ///< (count)
  const ScoreRow* rows = nullptr;   ///< (count)
  const float* logits = nullptr;    ///< (…, stride)
  int count = 0;
  int vocab = 0;
  int stride = 0;
};

void run(Cpu& device, const Score& op);
void run(Cuda& device, const Score& op);

}  // namespace troupe::kernels
