#pragma once
// Masks as records of the step ring.
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "actors/grammar/grammars.h"
#include "ipc/wire.h"
#include "text/grammar/constraint.h"

namespace troupe {

/// Longest StepMasks record: 20 masks of 100,000 tokens as bits.
inline constexpr std::size_t kMaxMaskRecordBytes = std::size_t{256} << 10;

/// Calls `send` with one record or several for the rows, which may be of several steps: with the masks of a
/// row that is `made`, and for the others with one that allows everything. The bytes are valid during the
/// call.
void write_masks(std::uint32_t epoch, std::span<const ReadyRow> rows,
                 const std::function<void(std::span<const std::byte>)>& send);

}  // namespace troupe
