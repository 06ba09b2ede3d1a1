#pragma once
// Rows that begin at a sequence's last token, wherever that stands: a GPU's side of speculation.
//
// Two steps are in flight, and how many draft tokens the first one accepts is known on the GPU alone. So the
// host says which sequences run and at most how many rows each, and these kernels make the rest from what the
// GPU keeps of each slot. In the order of a step:
//   DeriveRows, behind StepInputs: draft tokens, and the rows, samples and sequences that verify them.
//   AcceptDrafts, behind sampling: how many of them are right, and so where the sequence ends now.
//   ProposeDrafts, last: for sequences whose results say the draft tokens of their next row.
// Draft tokens that a layer of the model makes come between the last two: derived_drafts.h.
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

/// The draft tokens of a slot's next row, where its results say them.
struct Proposal {
  std::int32_t count = 0;
  std::int32_t predicted = 0;  ///< 1: they are of the prediction
  TokenId ids[kMostDrafts]{};
};

/// A sequence whose results say its next draft tokens, in a step that samples a token of it. If its form
/// forces tokens from the place of the row's last mask on, they begin with those.
struct ProposingSequence {
  std::int32_t slot = -1;     ///< -1: padding
  std::int32_t sample = 0;    ///< the first of its samples
  std::int32_t derived = -1;  ///< index of its Yield; -1: the host has made its row
  std::int32_t most = 0;      ///< draft tokens that a result may say
  std::int32_t max_tokens = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t masks = 0;  ///< places of the row that have a mask; 0: its tokens wait for none
  std::int32_t forced_count = 0;
  TokenId forced[kMostDrafts + 1]{};
};

/// How DeriveRows and ProposeDrafts find draft tokens: by the prediction, else those that the draft layer has
/// made, and behind them by n-grams as NgramDrafter does.
struct DraftSource {
  Predictions predictions{};
  const TokenId* drafted = nullptr;  ///< (slots, kMostDrafts) by the draft layer; null: there is none
  bool ngrams = true;
  std::int32_t shortest_ngram = 2;  ///< at least 1
  std::int32_t longest_ngram = 5;   ///< at most kMostNgram
  /// A draft ends before any of these ids.
  TokenId never[kMostNeverDrafted]{};
  std::int32_t never_count = 0;
  /// Only for measuring: rows have as many draft tokens as they may, all of them the sequence's last token.
  bool synthetic = false;
};

/// Writes rows [row, row + rows) and as many samples of every derived sequence: the first row runs the last
/// token sampled, the next ones its draft tokens, and what is left is padding. A sequence that has
/// max_tokens, or whose last token lies beyond its blocks, has padding alone. Of a sample, `logits_row`,
/// `position`, `known_tokens` and `banned_count` are made; the host has packed the rest, with the banned ids
/// that count while the answer is shorter than min_tokens. `logits_row` of gated samples is left to
/// OpenGates. Sequences that propose verify what ProposeDrafts has made.
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
  const Proposal* proposals = nullptr;  ///< (slots)
  bool drafts = false;                  ///< false: every sequence has one row
  std::int32_t* predicted = nullptr;    ///< (count) 1: the row's draft tokens are of the prediction
};

/// A draft token is accepted if it is what was sampled in its place. Moves each derived sequence's end, and
/// its last sampled token, behind the accepted ones and the token after them. An error behind a draft token
/// ends what is accepted before it, and so does a place that has not sampled for want of a mask. While the
/// step is held it does nothing.
struct AcceptDrafts {
  const DerivedSequence* derived = nullptr;  ///< (count)
  int count = 0;
  SlotState* states = nullptr;
  TokenId* sampled = nullptr;
  StepArrays arrays{};
  SampleResult* results = nullptr;          ///< (samples)
  const std::int32_t* predicted = nullptr;  ///< (count)
  Yield* yields = nullptr;                  ///< (count)
  const std::uint32_t* held = nullptr;      ///< StepClock::held; null: the step is not held
  /// Only for measuring: accepts by the toss of a coin instead, with probability acceptance / 2^32, and takes
  /// what it accepts for sampled. 0: off.
  std::uint32_t acceptance = 0;
};

/// Draft tokens for the next row of each sequence, up to `most`, but none for its last token. Where it has
/// yielded no token, those that it has stay. Behind a logit that is not finite there are none.
struct ProposeDrafts {
  const ProposingSequence* sequences = nullptr;  ///< (count)
  int count = 0;
  SlotState* states = nullptr;  ///< (slots)
  const TokenId* sampled = nullptr;
  const BlockId* blocks = nullptr;  ///< (slots, blocks_per_slot)
  std::size_t blocks_per_slot = 0;
  const TokenId* block_ids = nullptr;  ///< as StepInputs
  std::int64_t ids_to_next_block = 0;
  const SampleRow* samples = nullptr;     ///< (samples)
  const SampleResult* results = nullptr;  ///< (samples)
  const Yield* yields = nullptr;
  DraftSource source{};
  Proposal* proposals = nullptr;  ///< (slots)
};

void run(Cuda& device, const DeriveRows& op);
void run(Cuda& device, const AcceptDrafts& op);
void run(Cuda& device, const ProposeDrafts& op);

}  // namespace troupe::kernels
