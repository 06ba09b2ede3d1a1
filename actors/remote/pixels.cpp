#include "actors/remote/pixels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "actors/remote/frames.h"

namespace troupe::remote {
namespace {

constexpr std::size_t kMostPiece = kMostPixelBytes - sizeof(PixelPiece);
constexpr std::size_t kMostGone = kMostPixelBytes / sizeof(wire::PatchPlace);

}  // namespace

void PixelSource::put_gone(std::vector<std::byte>& out) {
  if (!region_) return;
  payload_.clear();
  for (auto item = sent_.begin(); item != sent_.end();) {
    const wire::PatchPlace place{item->first, item->second};
    if (region_->holds(place)) {
      ++item;
      continue;
    }
    if (payload_.size() / sizeof place == kMostGone) {
      put_frame(out, FrameKind::pixels_gone, payload_);
      payload_.clear();
    }
    const auto bytes = std::as_bytes(std::span(&place, 1));
    payload_.insert(payload_.end(), bytes.begin(), bytes.end());
    item = sent_.erase(item);
  }
  if (!payload_.empty()) put_frame(out, FrameKind::pixels_gone, payload_);
}

bool PixelSource::put_items(const Submit& request, std::vector<std::byte>& out,
                            const std::function<bool()>& flush) {
  if (!region_) return true;
  for (const SequenceSpec& sequence : request.sequences) {
    for (const SequenceItem& item : sequence.media) {
      if (const auto known = sent_.find(item.place.offset);
          known != sent_.end() && known->second == item.place.generation) {
        continue;
      }
      // What has gone goes first, so that its room is free: MEDIA may have given it to this item.
      put_gone(out);
      if (!put_item(item.place, out, flush)) return false;
    }
  }
  return true;
}

/// False: the connection is over.
bool PixelSource::put_item(const wire::PatchPlace& place, std::vector<std::byte>& out,
                           const std::function<bool()>& flush) {
  const auto item = region_->find(place);
  if (!item) return true;
  sent_[place.offset] = place.generation;
  for (std::size_t first = 0; first < item->patches.size(); first += kMostPiece) {
    const auto patches = item->patches.subspan(first, std::min(kMostPiece, item->patches.size() - first));
    const PixelPiece piece{place, first, item->kind, {}, item->grid};
    const auto head = std::as_bytes(std::span(&piece, 1));
    payload_.assign(head.begin(), head.end());
    payload_.insert(payload_.end(), patches.begin(), patches.end());
    // Asked behind the copy: a piece that may be another item's is not sent, so the item never gets whole.
    if (!region_->holds(place)) return true;
    put_frame(out, FrameKind::pixels, payload_);
    if (!flush()) return false;
  }
  return true;
}

Result<ipc::PatchWriter::Begun> PixelStore::begin(MediaKind kind, const PatchGrid& grid) {
  const std::lock_guard lock(mutex_);
  return region_.begin(kind, grid);
}

void PixelStore::finish(const wire::PatchPlace& place) {
  const std::lock_guard lock(mutex_);
  region_.finish(place);
}

void PixelStore::remove(const wire::PatchPlace& place) {
  const std::lock_guard lock(mutex_);
  region_.remove(place);
}

std::uint64_t PixelStore::used() const {
  const std::lock_guard lock(mutex_);
  return region_.used();
}

bool PixelSink::take_pixels(std::span<const std::byte> payload) {
  PixelPiece piece;
  if (!store_ || payload.size() <= sizeof piece) return false;
  std::memcpy(&piece, payload.data(), sizeof piece);
  const auto patches = payload.subspan(sizeof piece);
  if (piece.first == 0) {
    if (!begin(piece)) return false;
  } else if (expected_ == 0 || piece.place != begun_) {
    return false;
  }
  if (piece.first != filled_ || patches.size() > expected_ - filled_) return false;
  if (!room_.empty()) std::memcpy(room_.data() + filled_, patches.data(), patches.size());
  filled_ += patches.size();
  if (filled_ < expected_) return true;
  Item& item = items_.at(piece.place.offset);
  if (!room_.empty()) store_->finish(item.place);
  item.whole = true;
  expected_ = 0;
  return true;
}

/// An item before it that is not whole has been removed at the front, which says so.
bool PixelSink::begin(const PixelPiece& piece) {
  const auto fits = [](std::int64_t a, std::int64_t b) {
    return a <= std::numeric_limits<std::int32_t>::max() / b;
  };
  const PatchGrid& grid = piece.grid;
  if (grid.frames <= 0 || grid.rows <= 0 || grid.columns <= 0 || !fits(grid.rows, grid.columns) ||
      !fits(std::int64_t{grid.rows} * grid.columns, grid.frames) || piece.place.generation == 0 ||
      (piece.kind != MediaKind::image && piece.kind != MediaKind::video) ||
      items_.contains(piece.place.offset)) {
    return false;
  }
  Item item{piece.place.generation, {}, ipc::PatchRegion::bytes_of(grid), false};
  room_ = {};
  if (item.bytes <= store_->most_bytes() - used_) {
    if (auto begun = store_->begin(piece.kind, grid); begun.ok()) {
      item.place = begun->place;
      room_ = begun->patches;
      used_ += item.bytes;
    }
  }
  items_.emplace(piece.place.offset, item);
  begun_ = piece.place;
  filled_ = 0;
  expected_ = static_cast<std::uint64_t>(grid.patches()) * kPatchBytes;
  return true;
}

bool PixelSink::take_gone(std::span<const std::byte> payload) {
  if (!store_ || payload.size() % sizeof(wire::PatchPlace) != 0) return false;
  for (; !payload.empty(); payload = payload.subspan(sizeof(wire::PatchPlace))) {
    wire::PatchPlace place;
    std::memcpy(&place, payload.data(), sizeof place);
    const auto item = items_.find(place.offset);
    if (item == items_.end() || item->second.generation != place.generation) return false;
    if (expected_ != 0 && place == begun_) expected_ = 0;
    drop(item);
  }
  return true;
}

bool PixelSink::translate(Submit& request) const {
  bool has_media = false;
  for (SequenceSpec& sequence : request.sequences) {
    for (SequenceItem& one : sequence.media) {
      has_media = true;
      const auto item = items_.find(one.place.offset);
      const bool here =
          item != items_.end() && item->second.generation == one.place.generation && item->second.whole;
      one.place = here ? item->second.place : wire::PatchPlace{};
    }
  }
  return has_media;
}

void PixelSink::clear() {
  while (!items_.empty()) drop(items_.begin());
  expected_ = 0;
}

void PixelSink::drop(std::map<std::uint64_t, Item>::iterator item) {
  if (item->second.place.generation != 0) {
    store_->remove(item->second.place);
    used_ -= item->second.bytes;
  }
  items_.erase(item);
}

}  // namespace troupe::remote
