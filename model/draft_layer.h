#pragma once
// What callers tell the decoder about drafts: model/speculation.md.
#include <cstdint>

#include "base/ids.h"
#include "kernels/batch.h"
#include "kernels/sample.h"

namespace troupe::model {

/// Which rows the final norm has passed. The defaults are what ERNIE-4.5 was published for.
struct DraftNorms {
  bool hidden = true;  ///< of the hidden rows that the layer reads
  bool output = true;  ///< of the layer's output before the head
};

/// No token: that of a row is not known yet.
inline constexpr TokenId kNoToken = -1;

/// What the draft layer runs of one sequence of the step that has just run. With h(p) the hidden row of
/// position p and t(p) its token, KV slot i of the layer is a function of h(i - 1) and t(i). The step's rows
/// [position, position + rows) fill the slots position + 1 … position + rows - 1 and, with `next`, position +
/// rows; with `carried` also the slot `position`.
struct DraftRows {
  std::int32_t sequence = 0;  ///< index in StepBatch::sequences
  std::int32_t rows = 0;      ///< of its rows the first ones, whose tokens were accepted; at least 1
  /// Block table that covers every slot that this call and draft_again() fill.
  const BlockId* blocks = nullptr;
  /// The token after the last of `rows`: a draft of the token behind it is wanted. kNoToken: the prompt goes
  /// on in a later step, which will be `carried`.
  TokenId next = kNoToken;
  /// True if the layer has not filled the KV slot `position`: because the last draft_rows() of this slot had
  /// no `next`, or because the blocks before come from another sequence. The layer runs it too, with the
  /// hidden row that was kept for the slot, or where a block begins with the one that lies in the block
  /// before.
  bool carried = false;
  kernels::SampleRow sample{};  ///< with `next`: of the row that will verify the draft; logits_row is ignored
};

/// One more draft token of a sequence.
struct DraftAgain {
  std::int32_t of = 0;          ///< index among the results of the last draft_rows() or draft_again()
  TokenId token = 0;            ///< of that result
  kernels::SampleRow sample{};  ///< as DraftRows::sample
};

/// Hidden rows to copy, as kernels::CopyRows has them: from[i] to to[i], nothing where to[i] is negative.
/// Device memory.
struct RowCopies {
  const std::int32_t* to = nullptr;    ///< (count)
  const std::int32_t* from = nullptr;  ///< (count)
  int count = 0;
};

/// A run of the draft layer whose inputs an earlier kernel has written to device memory: the host knows the
/// addresses, `rows` and the counts alone, so that the run may be part of a CUDA graph. For Decoder::draft()
/// and Decoder::draft_again(). All indices must be valid, those of padding too.
///
/// Decoder::draft(), behind a step. Let a sequence of the step have rows [row, row + n) at the positions from
/// p on, of which the first `a` (1 … n) were accepted, so that the step's tokens at p + 1 … p + a - 1 are
/// what was sampled before them, and t be the token sampled at row + a - 1. Then
///   - draft row r = row + j, j < a:  tokens[r] the token at position p + j + 1, which is what was sampled at
///     the step's row r, and for j = a - 1 is t;  from[r] = r;  positions[r] = p + j + 1, which is the KV
///     slot that the row fills;  slots[r] = {blocks[(p + j + 1) / 64], (p + j + 1) % 64};
///   - sequences[s] = {blocks, p + 1, a, row};
///   - picks[i] = row + a - 1, if the sequence drafts; samples[i]: what will verify the draft of position
///     p + a + 1. So `position` (output tokens before it) and `known_tokens` are those of the row that
///     sampled t, plus 1; with penalties `tokens`, or the ids in `blocks`, have t already; mask null;
///     logits_row = i; `next`, if not null, gets the draft token, where draft_again() may read it.
/// A row that was not accepted is padding, for which batch.most_tokens must be set if there is one sequence:
/// tokens[r] 0, from[r] = r, positions[r] 0, slots[r] {kPaddingBlock, 0}, and no sequence covers it. It may
/// instead be a row like any other, with any token, as long as its slot is one of the sequence's: what it
/// writes lies behind the last token, and the next runs write over it before they read. Then
/// sequences[s].tokens is n, and no row of `batch` but those of padding is without a sequence. A slot for
/// which no block is granted is padding in either case, and the sequence covers the rows before it; where
/// that is row
/// + a - 1 itself, the sequence drafts nothing. A sequence that drafts nothing (a padding sequence with 0
/// tokens, one that has ended, one whose next token needs a mask) has samples[i].logits_row -1 and any row as
/// picks[i].
///
/// Where the token behind a step's last row is not known, because the prompt goes on, the last row is padding
/// and the sequence one row shorter; `keep` has the row. The next step of the sequence is `carried`
/// (DraftRows): in front of its rows stands one with token and position of the step's row `row`, slot
/// {blocks[p / 64], p % 64} and from = -1 - slot of the sequence; sequences[s] then has position p and starts
/// at that row. Draft rows no longer have the step's indices then: `row` in `sequences` and `picks` counts
/// draft rows, `from` rows of the step. So there are up to limits.rows + limits.sequences of them.
///
/// Decoder::draft_again(), behind draft() or draft_again(), whose `picks` count as indices: row i has
/// from[i] = the index of the draft before it, tokens[i] = that draft, positions[i] and slots[i] one behind
/// those of the row that made it; sequences[i] = {blocks, positions[i], 1, i}; samples[i]: `position` and
/// `known_tokens` one more. A sequence that drafts no more is padding: 0 tokens, {kPaddingBlock, 0},
/// logits_row -1. A draft with an error counts as token 0; the target verifies it like any other.
struct DeviceDrafts {
  kernels::Batch batch{};
  const TokenId* tokens = nullptr;          ///< (batch.rows)
  const std::int32_t* positions = nullptr;  ///< (batch.rows)
  /// (batch.rows) rows of the step, or -1 - slot of a hidden row that was kept; draft_again(): see above.
  const std::int32_t* from = nullptr;
  const std::int32_t* picks = nullptr;  ///< (count) draft rows; null: rows 0 … count - 1
  /// (count) picks[i] alone, as row i: {blocks, positions[picks[i]], 1, i}; 0 tokens where the sequence
  /// drafts nothing. Null: attention runs all rows, however many there are for each that drafts.
  const kernels::SequenceRows* ends = nullptr;
  const kernels::SampleRow* samples = nullptr;  ///< (count)
  int count = 0;                                ///< at most limits.sequences

  // What draft() copies; draft_again() takes none.
  /// Before the run: to a slot from the last hidden row of a block, for carried rows at a block's first
  /// position: to = slot, from = blocks[p / 64 - 1].
  RowCopies carry{};
  /// After the run: to a slot from a row of the step: the last accepted one, row + a - 1. A slot may be left
  /// out (to -1) while its sequence's next step is not carried.
  RowCopies keep{};
  /// After the run: to a block from the row of the step that is its last position's: for each accepted row
  /// at a position q with q % 64 == 63, to = blocks[q / 64]; other rows -1.
  RowCopies fill{};
};

}  // namespace troupe::model
