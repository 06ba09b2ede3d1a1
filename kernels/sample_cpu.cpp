#include "kernels/sample.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "gpu/cpu.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/routines.h"
#include "kernels/philox.h"
#include "kernels/sampling_weight.h"

namespace troupe::kernels {
namespace {

bool penalises(const SampleRow& row) {
  return row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
}

/// Clamps a changed logit to the finite range, so that the sampling weights stay finite after an overflow.
float bounded(float logit) {
  constexpr float kLimit = std::numeric_limits<float>::max();
  return std::clamp(logit, -kLimit, kLimit);
}

/// Applies repetition, frequency and presence penalties. `seen`: working memory, one word per token id.
/// Counts are made from the sequence's ids each time, so there is no state to keep in sync.
void penalise(const SampleRow& row, float* logits, std::uint32_t* seen) {
  constexpr std::uint32_t kDone = ~0u;
  for (std::int32_t i = 0; i < row.known_tokens; ++i) seen[row.tokens[i]] = 0;
  for (std::int32_t i = row.prompt_tokens; i < row.known_tokens; ++i) ++seen[row.tokens[i]];
  for (std::int32_t i = 0; i < row.known_tokens; ++i) {
    const TokenId id = row.tokens[i];
    const std::uint32_t count = seen[id];
    if (count == kDone) continue;
    seen[id] = kDone;
    float& z = logits[id];
    z = z > 0 ? z / row.repetition_penalty : z * row.repetition_penalty;
    if (count > 0) z -= row.frequency_penalty * static_cast<float>(count) + row.presence_penalty;
    z = bounded(z);
  }
}

/// Writes the `count` largest logits to `top`: largest first, lower id first among equals.
void top_logits(const Routines& r, const float* logits, int vocab, int count, TopLogprob* top) {
  int held = 0;
  const auto insert = [&](TokenId id) {
    int at = held < count ? held++ : count - 1;
    for (; at > 0 && top[at - 1].logprob < logits[id]; --at) top[at] = top[at - 1];
    top[at] = {id, logits[id]};
  };
  TokenId id = 0;
  for (; id < count; ++id) insert(id);
  while ((id = r.next_above(logits, vocab, id, top[count - 1].logprob)) < vocab) insert(id++);
}

/// Writes the top raw log-probabilities to `result`. Returns the log of the softmax's denominator: subtracted
/// from a logit, it gives the log-probability.
float score(const Routines& r, const float* logits, int vocab, float largest, int top_count,
            SampleResult& result) {
  const float normaliser = log_sum_exp(r, logits, vocab, largest);
  result.top_count = std::min({top_count, vocab, kMaxTopLogprobs});
  if (result.top_count > 0) top_logits(r, logits, vocab, result.top_count, result.top);
  for (int i = 0; i < result.top_count; ++i) result.top[i].logprob -= normaliser;
  return normaliser;
}

/// `working`: 3 * vocab words for weights or counts, the filters' candidates, and the raw logits.
void sample_row(const Routines& r, const Sample& op, const SampleRow& row, SampleResult& result,
                std::uint32_t* working) {
  float* logits = op.logits + static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(op.stride);
  result.token = 0;
  result.top_count = 0;
  Peak peak = r.peak(logits, op.vocab);
  result.error = peak.finite ? SampleError::none : SampleError::not_finite;
  if (!peak.finite) return;
  float normaliser = 0;
  if (row.logprobs >= 0) {
    normaliser = score(r, logits, op.vocab, peak.largest, row.logprobs, result);
  }

  const bool processed = row.bias_count > 0 || row.banned_count > 0 || penalises(row) || row.mask != nullptr;
  // The logits are changed in place, but the drawn token's logprob is that of the raw logits: keep a copy.
  float* raw = nullptr;
  if (processed && row.logprobs >= 0) {
    raw = reinterpret_cast<float*>(working) + 2 * static_cast<std::size_t>(op.vocab);
    std::copy_n(logits, op.vocab, raw);
  }
  for (int i = 0; i < row.bias_count; ++i) {
    float& z = logits[row.bias[i].token];
    z = bounded(z + row.bias[i].bias);
  }
  for (int i = 0; i < row.banned_count; ++i) logits[row.banned[i]] = kBannedLogit;
  if (penalises(row)) penalise(row, logits, working);
  if (row.mask != nullptr) r.mask(logits, row.mask, op.vocab);
  if (processed) peak = r.peak(logits, op.vocab);

  if (row.temperature <= 0 || row.top_k == 1) {
    result.token = r.find(logits, op.vocab, peak.largest);
  } else {
    r.weigh(working, logits, op.vocab, peak.largest, sampling_scale(row.temperature));
    const Kept kept = filter(r, working, op.vocab, row.top_k, row.top_p, row.min_p, working + op.vocab);
    result.token = draw(r, working, op.vocab, kept, sample_bits(row.seed, row.choice, row.position));
  }
  if (row.logprobs >= 0) result.logprob = (raw != nullptr ? raw : logits)[result.token] - normaliser;
}

}  // namespace

void run(Cpu& device, const Sample& op) {
  const Routines& r = routines(device.isa());
  device.reserve_lanes(3 * sizeof(float) * static_cast<std::size_t>(op.vocab));
  device.pool().for_each(op.count, 1, [&](int begin, int end, int lane) {
    for (int i = begin; i < end; ++i) {
      const SampleRow& row = op.rows[i];
      if (row.logits_row < 0) continue;
      sample_row(r, op, row, op.results[i], static_cast<std::uint32_t*>(device.lane(lane)));
      if (row.next != nullptr) *row.next = op.results[i].token;
    }
  });
}

void run(Cpu& device, const Score& op) {
  const Routines& r = routines(device.isa());
  device.pool().for_each(op.count, 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      const ScoreRow& row = op.rows[i];
      TROUPE_CHECK(row.token >= 0 && row.token < op.vocab);
      const float* logits =
          op.logits + static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(op.stride);
      SampleResult& result = op.results[i];
      const Peak peak = r.peak(logits, op.vocab);
      result.token = row.token;
      result.top_count = 0;
      result.error = peak.finite ? SampleError::none : SampleError::not_finite;
      if (!peak.finite) continue;
      result.logprob = logits[row.token] - score(r, logits, op.vocab, peak.largest, row.logprobs, result);
    }
  });
}

}  // namespace troupe::kernels
