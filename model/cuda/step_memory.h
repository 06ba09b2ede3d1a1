#pragma once
// Device memory of the sequences and of the running step. The pointers are device addresses: host code never
// dereferences them.
#include <cstddef>
#include <cstdint>

#include "gpu/buffer.h"
#include "ipc/wire.h"
#include "kernels/derived_drafts.h"
#include "kernels/derived_rows.h"
#include "kernels/step_inputs.h"
#include "kernels/top_logprobs.h"

namespace troupe::model {

/// The state of the sequences, one line per slot.
struct SequenceMemory {
  TokenId* sampled = nullptr;  ///< the id last sampled; older ones and prompts lie in the KV blocks
  TokenId* kv_ids = nullptr;   ///< not a line per slot: the ids of KV block 0 (KvCache::ids)
  std::int64_t ids_to_next_block = 0;
  BlockId* blocks = nullptr;
  std::size_t blocks_per_slot = 0;
  std::byte* lists = nullptr;           ///< kMaxSamplingBytes per slot: the logit biases, then the stop ids
  kernels::ScoreRow* scores = nullptr;  ///< (rows of a step) prompt tokens that the step scores
  std::int32_t* score_picks = nullptr;  ///< (rows of a step) the batch row of each
  kernels::TopRow* sample_tops = nullptr;  ///< (slots), (rows of a step): StepBatch's of the same names;
  kernels::TopRow* score_tops = nullptr;   ///< null where most_tops() is 0
  std::int32_t* read_rows = nullptr;       ///< (slots) DeviceReads::rows
  kernels::SequenceRows* read_sequences = nullptr;  ///< (slots) DeviceReads::sequences
  std::uint32_t* held = nullptr;                    ///< StepClock::held
  std::uint32_t* masks = nullptr;                   ///< mask_words(vocab) per mask of the held step
  // With speculation; else null.
  kernels::SlotState* states = nullptr;
  TokenId* predictions = nullptr;     ///< wire::kMostPredicted per slot
  std::int32_t* predicted = nullptr;  ///< (slots) DeriveRows::predicted
  kernels::Yield* yields = nullptr;   ///< (slots)
  TokenId* drafted = nullptr;         ///< kMostDrafts per slot: by the draft layer
  kernels::Proposal* proposals = nullptr;
  // Of a model that sees, for steps with rows of items; else null.
  std::int32_t* positions = nullptr;  ///< (rows of a step, 3): StepBatch::positions
  std::uint8_t* kinds = nullptr;      ///< (rows of a step, rounded up to 4): StepBatch::kinds
};

struct StepMemory {
  SequenceMemory sequences{};
  kernels::StepArrays arrays{};
  kernels::StepClock* clock = nullptr;
  // Of the held step:
  kernels::SampleRow* held_rows = nullptr;          ///< (samples) padding but for its gated rows
  std::int32_t* gates = nullptr;                    ///< (samples) OpenGates::gates
  kernels::ProposingSequence* proposing = nullptr;  ///< (slots); null without speculation
  kernels::DraftArrays drafts{};                    ///< null without speculation
  std::size_t bytes = 0;

  /// Without memory (a null View) only the size is meaningful.
  static StepMemory make(const wire::Capacity& capacity, View memory);
};

}  // namespace troupe::model
