#pragma once
// Sequences whose grammar masks were not made in time for their rows.
#include <span>

#include "actors/scheduler/sequence_table.h"
#include "base/ids.h"

namespace troupe {

// A mask that takes too long must not hold up the step: GRAMMAR then gives the row one that allows everything
// and says that the sequence is late. What the row samples, and the rows after it that are in flight, is
// dropped; when the mask has been made, the sequence runs the same position again and samples with it. The
// state of this is in the sequences: ScheduledSequence::late, mask_made, again and owes_ask. With drafts a
// row may have waited for masks of its last places alone; the row that comes for it is asked for all the
// same.

/// The masks of these sequences are late. Unknown and ended ones are ignored.
void mark_masks_late(std::span<const RequestKey> keys, ScheduledSequences& table);

/// They have been made. A sequence that is not late any more was put back, or lost its worker: it asks again.
void mark_masks_made(std::span<const RequestKey> keys, ScheduledSequences& table);

/// Requires that the sequence is late. Lets it run its last known token again, once no plan in flight names
/// it and its mask has been made.
void run_late_position_again(ScheduledSequence& sequence);

}  // namespace troupe
