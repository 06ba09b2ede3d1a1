#pragma once
// Rows that begin at a sequence's last token, wherever that stands: a GPU's side of speculation.
//
// Two steps are in flight, and how many draft tokens the first one accepts is known on the GPU alone. So the
// host says which sequences run and at most how many rows each, and these kernels make the rest from what the
// GPU keeps of each slot. In the order of a step:
//   DeriveRows, behind StepInputs: draft tokens, and the rows, samples and sequences that verify them.
//   AcceptDrafts, behind sampling: how many of them are right, and so where the sequence ends now.
// Draft tokens that a layer of the model makes follow behind that: derived_drafts.h.
#include <cstddef>
#include <cstdint>

#include "base/draft_choices.h"
#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/step_inputs.h"

namespace troupe::kernels {

/// Longest n-gram that can be looked up.
inline constexpr std::int32_t kMostNgram = 64;
/// Tokens of the answer by which its place in the client's prediction is found again.
inline constexpr std::int32_t kPredictionAnchor = 3;
/// Most ids that no draft token may be.
inline constexpr std::int32_t kMostNeverDrafted = 8;

/// What the GPU keeps of a slot. The host sets all of it when a sequence starts; `known` is set by whatever
/// samples a token of it.
struct SlotState {
  std::int32_t known = 0;             ///< tokens, the last sampled one among them
  std::int32_t prediction_count = 0;  ///< tokens of the client's prediction
  std::int32_t prediction_shift = 0;  ///< output token i is prediction token i + shift, while it is followed
  std::int32_t prediction_left = 0;   ///< the place in the prediction behind what was followed last
  // With a draft layer (derived_drafts.h):
  std::int32_t draft_slots = 0;     ///< its first KV slot that is not filled; 0: it has run nothing
  std::int32_t drafted = 0;         ///< draft tokens that it has made
  std::int32_t drafted_behind = 0;  ///< so many tokens
};

/// What the client takes the slot's answer to be like, and where the prediction of slot s begins.
struct Predictions {
  const TokenId* tokens = nullptr;  ///< null: no request has one
  std::int32_t per_slot = 0;
};

/// How DeriveRows finds draft tokens: by the prediction, else those that the draft layer has made, and behind
/// them by n-grams as NgramDrafter does.
struct DraftSource {
  Predictions predictions{};
  const TokenId* drafted = nullptr;  ///< (slots, kMostDrafts) by the draft layer; null: there is none
  bool ngrams = true;
  std::int32_t shortest_ngram = 2;  ///< at least 1
  std::int32_t longest_ngram = 5;   ///< at most kMostNgram
  /// A draft ends before any of these ids.
  TokenId never[kMostNeverDrafted]{};
  std::int32_t never_count = 0;
  /// Only for measuring: rows have as many draft tokens as they may, whatever these are.
  bool synthetic = false;
};

/// Writes rows [row, row + rows) and as many samples of every derived sequence: the first row runs the last
/// token sampled, the next ones its draft tokens, and what is left is padding. A sequence that has
/// max_tokens, or whose last token lies beyond its blocks, has padding alone. Of a sample, `logits_row`,
/// `position`, `known_tokens` and `banned_count` are made; the host has packed the rest, with the banned ids
/// that count while the answer is shorter than min_tokens.
struct DeriveRows {
  const DerivedSequence* derived = nullptr;  ///< (count)
  int count = 0;
  SlotState* states = nullptr;       ///< (slots)
  const TokenId* sampled = nullptr;  ///< (slots)
  const BlockId* blocks = nullptr;   ///< (slots, blocks_per_slot)
  std::size_t blocks_per_slot = 0;
  TokenId* block_ids = nullptr;  ///< as StepInputs
  std::int64_t ids_to_next_block = 0;
  StepArrays into{};
  std::int32_t* positions = nullptr;  ///< (rows, 3), of a step whose rows have three; else null
  DraftSource source{};
  bool drafts = false;                ///< false: every sequence has one row
  std::int32_t* predicted = nullptr;  ///< (count) 1: the row's draft tokens are of the prediction
};

/// A draft token is accepted if it is what was sampled in its place. Moves each derived sequence's end, and
/// its last sampled token, behind the accepted ones and the token after them. An error behind a draft token
/// ends what is accepted before it.
struct AcceptDrafts {
  const DerivedSequence* derived = nullptr;  ///< (count)
  int count = 0;
  SlotState* states = nullptr;
  TokenId* sampled = nullptr;
  StepArrays arrays{};
  const SampleResult* results = nullptr;    ///< (samples)
  const std::int32_t* predicted = nullptr;  ///< (count)
  Yield* yields = nullptr;                  ///< (count)
  /// Only for measuring: accepts by the toss of a coin instead, with probability acceptance / 2^32. 0: off.
  std::uint32_t acceptance = 0;
};

void run(Cuda& device, const DeriveRows& op);
void run(Cuda& device, const AcceptDrafts& op);

}  // namespace troupe::kernels
