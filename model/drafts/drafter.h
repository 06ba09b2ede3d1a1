#pragma once
// Makes draft tokens: guesses at what a sequence goes on with, which the next step verifies.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/draft_choices.h"
#include "base/ids.h"
#include "kernels/batch.h"
#include "kernels/sample.h"
#include "model/draft_layer.h"
#include "model/step_batch.h"

namespace troupe::model {

/// A sequence of a step, as it stands after the step's tokens were accepted.
struct Advanced {
  std::int32_t sequence = 0;  ///< index in StepBatch::sequences
  std::uint32_t slot = 0;
  std::int32_t rows = 0;              ///< of its rows the first ones, whose tokens were accepted; at least 1
  std::span<const BlockId> blocks{};  ///< its block table
  TokenId next = kNoToken;            ///< the last token sampled; kNoToken: its known tokens have not all run
  std::int32_t drafts = 0;            ///< with `next`: most draft tokens behind it that a row may verify
  kernels::SampleRow sample{};        ///< with `drafts`: what samples the token behind `next`
};

/// What a drafter has made.
struct Drafts {
  std::size_t count = 0;   ///< tokens
  bool predicted = false;  ///< they are the prediction's
};

/// For one thread. Every rank of a model must make the same drafts: they may depend on ids and logits alone.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// The slot holds another sequence from now on. `prediction`: what the client takes its answer to be like.
  virtual void start(std::uint32_t slot, std::int32_t prompt_tokens, std::span<const TokenId> prediction) = 0;

  /// The last ids of the slot's sequence are gone; others may take their places.
  virtual void rewind(std::uint32_t slot) = 0;

  /// A step has run and its tokens were accepted; what it has left in the decoder's memory is still there.
  virtual void advance(const StepBatch& batch, std::span<const Advanced> sequences) {
    static_cast<void>(batch), static_cast<void>(sequences);
  }

  /// Writes tokens that may follow `ids`, which are all of the slot's sequence, to the front of `out`. From
  /// call to call the ids of a sequence only grow.
  virtual Drafts draft(std::uint32_t slot, std::span<const TokenId> ids, std::span<TokenId> out) = 0;
};

}  // namespace troupe::model
