#pragma once
// The patches of prepared images and videos, in memory that the front writes and the workers only read: a
// record of a ring is too small for them.
//
// There is no lock. An item may be removed, and its place be used again, while a worker still reads it for a
// request that has ended. So every item has a generation of its own, and a reader asks again behind its last
// read whether the item is still there: if not, what it made of it must not be used, least of all be kept
// under the name of its contents.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/patch_grid.h"
#include "base/status.h"
#include "ipc/fd.h"
#include "ipc/memory_file.h"
#include "ipc/wire.h"

namespace troupe::ipc {

using wire::PatchPlace;

/// The first page of a region. What stands above `writer` never changes; attach() checks it.
struct PatchRegionHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;  ///< wire::kVersion
  std::uint32_t padding = 0;
  std::uint64_t bytes = 0;  ///< of the region
  /// How many processes have written here one after the other; its lowest bits are the highest of every
  /// generation.
  alignas(64) std::atomic<std::uint64_t> writer{0};
};

/// What stands before an item's patches.
struct PatchItemHeader {
  std::atomic<std::uint64_t> generation{0};  ///< written last, and cleared first; 0: there is no item
  MediaKind kind{};
  PatchGrid grid{};
};

inline constexpr std::uint64_t kPatchRegionMagic = 0x3168637461707274;  // "trpatch1"
inline constexpr std::size_t kPatchItemHeaderBytes = 64;
static_assert(sizeof(PatchItemHeader) <= kPatchItemHeaderBytes && sizeof(PatchRegionHeader) <= 4096);

/// A reader's view of a region.
class PatchRegion {
 public:
  static constexpr std::uint64_t kAlignment = 4096;

  /// An empty region that holds so many bytes of items. Pages take memory when an item is written to them.
  static Result<Fd> create(std::uint64_t bytes);

  /// Maps a region after checking seals, size, magic and version. Does not keep the descriptor.
  static Result<PatchRegion> attach(int fd, Access access = Access::read);

  PatchRegion(PatchRegion&&) noexcept;
  PatchRegion& operator=(PatchRegion&&) noexcept;
  ~PatchRegion();

  struct Item {
    MediaKind kind{};
    PatchGrid grid{};
    std::span<const std::byte> patches;  ///< grid.patches() of kPatchBytes each
  };

  /// None when the item has been removed, or the place is not one of this region's.
  std::optional<Item> find(const PatchPlace& place) const;

  /// True if everything that was read of the item until now was its own.
  bool holds(const PatchPlace& place) const;

  /// Of a whole item, with what stands before it and up to the next place.
  static std::uint64_t bytes_of(const PatchGrid& grid);

 private:
  friend class PatchWriter;
  static constexpr int kWriterShift = 48;  // of the writer's number in a generation

  explicit PatchRegion(MappedRegion region);

  bool is_place(const PatchPlace& place) const;
  std::byte* at(std::uint64_t offset) const { return data_ + offset; }
  PatchItemHeader& item(std::uint64_t offset) const {
    return *reinterpret_cast<PatchItemHeader*>(at(offset));
  }

  MappedRegion region_;
  PatchRegionHeader* header_ = nullptr;
  std::byte* data_ = nullptr;  ///< the region's first byte
  std::uint64_t bytes_ = 0;    ///< of the region
};

}  // namespace troupe::ipc
