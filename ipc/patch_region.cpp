#include "ipc/patch_region.h"

#include <boost/interprocess/mapped_region.hpp>
#include <limits>
#include <string>
#include <utility>

#include "ipc/file_header.h"

namespace troupe::ipc {
namespace {

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + PatchRegion::kAlignment - 1) / PatchRegion::kAlignment * PatchRegion::kAlignment;
}

}  // namespace

std::uint64_t PatchRegion::bytes_of(const PatchGrid& grid) {
  return rounded(kPatchItemHeaderBytes + static_cast<std::uint64_t>(grid.patches()) * kPatchBytes);
}

Result<Fd> PatchRegion::create(std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  if (bytes == 0 || bytes > kMost) {
    return invalid("a region for patches of images has " + std::to_string(bytes) +
                   " bytes; it must have from 1 to " + std::to_string(kMost));
  }
  const std::uint64_t whole = kAlignment + rounded(bytes);
  return make_file_with<PatchRegionHeader>("troupe-patches", whole, kPatchRegionMagic,
                                           [whole](PatchRegionHeader& header) { header.bytes = whole; });
}

Result<PatchRegion> PatchRegion::attach(int fd, Access access) {
  auto region = map_memory_file(fd, 2 * kAlignment, access);
  if (!region) return region.status();
  const auto& h = *static_cast<const PatchRegionHeader*>((*region)->get_address());
  if (Status s = check_header(h, kPatchRegionMagic); !s.ok()) return s;
  if (Status s = check_bytes(h.bytes, (*region)->get_size()); !s.ok()) return s;
  return PatchRegion(std::move(*region));
}

PatchRegion::PatchRegion(MappedRegion region)
    : region_(std::move(region)),
      header_(static_cast<PatchRegionHeader*>(region_->get_address())),
      data_(static_cast<std::byte*>(region_->get_address())),
      bytes_(region_->get_size()) {}

PatchRegion::PatchRegion(PatchRegion&&) noexcept = default;
PatchRegion& PatchRegion::operator=(PatchRegion&&) noexcept = default;
PatchRegion::~PatchRegion() = default;

bool PatchRegion::is_place(const PatchPlace& place) const {
  return place.generation != 0 && place.offset >= kAlignment && place.offset % kAlignment == 0 &&
         place.offset < bytes_;
}

std::optional<PatchRegion::Item> PatchRegion::find(const PatchPlace& place) const {
  if (!is_place(place)) return {};
  const PatchItemHeader& header = item(place.offset);
  if (header.generation.load(std::memory_order_acquire) != place.generation) return {};
  const Item found{header.kind, header.grid, {}};
  if (!holds(place)) return {};  // the words above are another item's
  const std::int64_t patches = found.grid.patches();
  const std::uint64_t room = bytes_ - place.offset;
  if (patches <= 0 || static_cast<std::uint64_t>(patches) > room / kPatchBytes || bytes_of(found.grid) > room)
    return {};
  const std::uint64_t bytes = static_cast<std::uint64_t>(patches) * kPatchBytes;
  return Item{found.kind, found.grid, {at(place.offset) + kPatchItemHeaderBytes, bytes}};
}

bool PatchRegion::holds(const PatchPlace& place) const {
  if (!is_place(place)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return item(place.offset).generation.load(std::memory_order_relaxed) == place.generation &&
         static_cast<std::uint16_t>(header_->writer.load(std::memory_order_relaxed)) ==
             place.generation >> kWriterShift;
}

}  // namespace troupe::ipc
