#pragma once
// Records about images and videos, on the step ring; a part of ipc/wire.h.
#include <cstdint>

#include "base/ids.h"
#include "ipc/wire_base.h"

namespace troupe::wire {

/// An image or a video of a sequence: its visual tokens begin at `first`.
struct MediaEntry {
  std::uint32_t kind = 0;  ///< 1 image, 2 video: MediaKind
  std::int32_t frames = 0;
  std::int32_t rows = 0;
  std::int32_t columns = 0;  ///< patches: PatchGrid
  std::int32_t first = 0;
  std::uint32_t padding = 0;
};

/// The items of a sequence, in the order of their tokens. Comes before the plan that starts the sequence; one
/// without media has none. Where rows stand, which experts they take and whose embeddings they have follows
/// from it. Not answered.
struct SequenceMedia {
  Header header{};
  SlotRef slot{};
  Span<MediaEntry> items{};
};

/// Where the patches of an item lie in the region that a front writes and workers read
/// (ipc/patch_region.h).
struct PatchPlace {
  std::uint64_t offset = 0;      ///< bytes from the region's first
  std::uint64_t generation = 0;  ///< of the item, never used twice; 0: no item

  bool operator==(const PatchPlace&) const = default;
};

/// Encodes an item of a sequence whose SequenceMedia has come. The worker keeps the result until a step has
/// run the item's last token, or a plan finishes the sequence. Rows of the item are planned when MediaDone
/// has come without an error. The patches stay where they are until then. A result that rows have used may be
/// kept longer, and then serves a later item of the same name.
struct EncodeMedia {
  Header header{};
  SlotRef slot{};
  std::int32_t item = 0;
  std::uint32_t front = 0;  ///< index of the engine's front in whose region the patches are
  PatchPlace place{};
  BlockHash name{};  ///< of what the item contains, for those who may share it; zero: it is not kept
};

/// The end of an EncodeMedia. Those of one sequence come in the order of its items.
struct MediaDone {
  Header header{};
  SlotRef slot{};
  std::int32_t item = 0;
  std::uint32_t dropped = 0;  ///< 1: the sequence had been finished
  std::uint32_t failed = 0;  ///< 1: its patches were gone, or changed while they were read; no row may use it
  std::uint32_t cached = 0;  ///< 1: the result of an earlier item of the same name was still there
  std::int64_t started_ns = 0;  ///< monotonic clock
  std::int64_t finished_ns = 0;
};

}  // namespace troupe::wire
