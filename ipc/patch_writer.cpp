#include "ipc/patch_writer.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"

namespace troupe::ipc {

Result<PatchWriter> PatchWriter::attach(int fd) {
  auto region = PatchRegion::attach(fd, Access::write);
  if (!region) return region.status();
  return PatchWriter(std::move(*region));
}

PatchWriter::PatchWriter(PatchRegion region) : region_(std::move(region)) {
  const std::uint64_t writer = region_.header_->writer.fetch_add(1) + 1;
  last_generation_ = writer << PatchRegion::kWriterShift;
  // The memory of the former writer's items is given back as a whole.
  std::byte* first = region_.at(PatchRegion::kAlignment);
  static_cast<void>(::madvise(first, capacity(), MADV_REMOVE));
  free_.emplace(PatchRegion::kAlignment, capacity());
}

Result<PatchPlace> PatchWriter::add(MediaKind kind, const PatchGrid& grid,
                                    std::span<const std::byte> patches) {
  TROUPE_CHECK(grid.patches() > 0 &&
               patches.size() == static_cast<std::uint64_t>(grid.patches()) * kPatchBytes);
  auto begun = begin(kind, grid);
  if (!begun) return begun.status();
  std::memcpy(begun->patches.data(), patches.data(), patches.size());
  finish(begun->place);
  return begun->place;
}

Result<PatchWriter::Begun> PatchWriter::begin(MediaKind kind, const PatchGrid& grid) {
  const std::uint64_t bytes = PatchRegion::bytes_of(grid);
  auto best = free_.end();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second >= bytes && (best == free_.end() || piece->second < best->second)) best = piece;
  }
  if (best == free_.end()) {
    return Status{Code::unavailable, "the memory for images has no free piece of " + std::to_string(bytes) +
                                         " bytes; it has " + std::to_string(capacity()) + ", " +
                                         std::to_string(used_) + " of them in use"};
  }
  const auto [offset, length] = *best;
  free_.erase(best);
  if (length > bytes) free_.emplace(offset + bytes, length - bytes);
  items_.emplace(offset, Held{bytes, ++last_generation_});
  used_ += bytes;

  PatchItemHeader& header = region_.item(offset);
  header.kind = kind;
  header.grid = grid;
  return Begun{
      {offset, last_generation_},
      {region_.at(offset) + kPatchItemHeaderBytes, static_cast<std::size_t>(grid.patches()) * kPatchBytes}};
}

void PatchWriter::finish(const PatchPlace& place) {
  region_.item(place.offset).generation.store(place.generation, std::memory_order_release);
}

void PatchWriter::remove(const PatchPlace& place) {
  const auto found = items_.find(place.offset);
  if (found == items_.end() || found->second.generation != place.generation) return;
  PatchItemHeader& header = region_.item(place.offset);
  header.generation.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before any byte of the next item
  const std::uint64_t bytes = found->second.bytes;
  items_.erase(found);
  used_ -= bytes;
  // Only a saving: pages that stay are written over.
  static_cast<void>(::madvise(region_.at(place.offset), bytes, MADV_REMOVE));
  release(place.offset, bytes);
}

/// Joins the piece with its free neighbours.
void PatchWriter::release(std::uint64_t offset, std::uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    if (auto before = std::prev(next); before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, bytes);
}

}  // namespace troupe::ipc
