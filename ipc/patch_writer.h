#pragma once
// The one process that writes a region of patches (ipc/patch_region.h): where its items lie, and what is
// free.
#include <cstdint>
#include <map>
#include <span>

#include "ipc/patch_region.h"

namespace troupe::ipc {

/// Not thread-safe.
class PatchWriter {
 public:
  /// Takes the region over: the items of the process that wrote before are gone.
  static Result<PatchWriter> attach(int fd);

  /// Writes an item to the shortest free piece that holds it. Requires grid.patches() × kPatchBytes bytes of
  /// patches. unavailable when no free piece is long enough.
  Result<PatchPlace> add(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches);

  /// An item whose patches come in pieces.
  struct Begun {
    PatchPlace place;
    std::span<std::byte> patches;  ///< to be filled; valid until remove()
  };
  /// Takes room for an item, as add() does. No reader finds it before finish().
  Result<Begun> begin(MediaKind kind, const PatchGrid& grid);
  /// All patches of a begun item have been written.
  void finish(const PatchPlace& place);

  /// Gives the item's memory back to the system, also that of one that is not finished. Nothing when it is
  /// not there.
  void remove(const PatchPlace& place);

  /// Bytes that items may take in all, and do take.
  std::uint64_t capacity() const { return region_.bytes_ - PatchRegion::kAlignment; }
  std::uint64_t used() const { return used_; }

 private:
  explicit PatchWriter(PatchRegion region);

  void release(std::uint64_t offset, std::uint64_t bytes);

  PatchRegion region_;
  std::map<std::uint64_t, std::uint64_t> free_;  // bytes of free pieces, by offset; none touches the next
  struct Held {
    std::uint64_t bytes = 0;
    std::uint64_t generation = 0;
  };
  std::map<std::uint64_t, Held> items_;  // by offset
  std::uint64_t used_ = 0;
  std::uint64_t last_generation_ = 0;
};

}  // namespace troupe::ipc
