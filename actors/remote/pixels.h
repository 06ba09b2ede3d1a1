#pragma once
// Patches of images and videos on their way to an engine on another machine. A request names them by their
// place in a region that only this machine has (ipc/patch_region.h). So the front's relay sends the patches
// before the request, and the engine's relay writes them to a region that the engine's workers read and puts
// the places there into the request.
//
//   region of MEDIA ─▶ PixelSource ═══ pixels, pixels_gone ═══▶ PixelSink ─▶ PixelStore, region of the
//   workers
//
// An item stays at the engine for as long as MEDIA keeps it, also for later requests, which send nothing
// again. So what a front has there is never more than what its MEDIA has, and MEDIA's limits hold. When the
// connection ends, all of it is given back.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "actors/messages.h"
#include "ipc/patch_region.h"
#include "ipc/patch_writer.h"

namespace troupe::remote {

/// At the beginning of a frame with a piece of an item's patches; the piece follows.
struct PixelPiece {
  wire::PatchPlace place;   ///< in the front's region
  std::uint64_t first = 0;  ///< where the piece begins among the patches; they come in order
  MediaKind kind{};
  std::uint8_t padding[3] = {};
  PatchGrid grid;
};
static_assert(sizeof(PixelPiece) == 40);

/// Of a frame of either kind.
inline constexpr std::size_t kMostPixelBytes = 1 << 20;

/// The front's side. Used by one thread.
class PixelSource {
 public:
  /// `region`: null where the model does not see.
  explicit PixelSource(std::shared_ptr<const ipc::PatchRegion> region) : region_(std::move(region)) {}

  bool sees() const { return region_ != nullptr; }

  /// The other side has nothing.
  void restart() { sent_.clear(); }

  /// Appends the frame that says which items have gone; nothing if none has.
  void put_gone(std::vector<std::byte>& out);

  /// Appends the items of a request that the other side has not got. `flush` writes what has been appended,
  /// so that no item has to be in memory as a whole; false: the connection is over. An item that is removed
  /// meanwhile, as its request has ended, is left out.
  bool put_items(const Submit& request, std::vector<std::byte>& out, const std::function<bool()>& flush);

 private:
  bool put_item(const wire::PatchPlace& place, std::vector<std::byte>& out,
                const std::function<bool()>& flush);

  const std::shared_ptr<const ipc::PatchRegion> region_;
  std::map<std::uint64_t, std::uint64_t> sent_;  // generations, by offset
  std::vector<std::byte> payload_;
};

/// The engine's region, for all fronts. Thread-safe.
class PixelStore {
 public:
  /// `most_bytes`: that the items of one front may take.
  PixelStore(ipc::PatchWriter region, std::uint64_t most_bytes)
      : region_(std::move(region)), most_bytes_(most_bytes) {}

  /// As those of ipc::PatchWriter.
  Result<ipc::PatchWriter::Begun> begin(MediaKind kind, const PatchGrid& grid);
  void finish(const wire::PatchPlace& place);
  void remove(const wire::PatchPlace& place);

  std::uint64_t most_bytes() const { return most_bytes_; }
  std::uint64_t used() const;

 private:
  mutable std::mutex mutex_;
  ipc::PatchWriter region_;
  const std::uint64_t most_bytes_;
};

/// The items of one front at the engine. Used by one thread.
class PixelSink {
 public:
  /// `store`: null where the model does not see.
  explicit PixelSink(std::shared_ptr<PixelStore> store) : store_(std::move(store)) {}
  ~PixelSink() { clear(); }
  PixelSink(const PixelSink&) = delete;
  PixelSink& operator=(const PixelSink&) = delete;

  bool sees() const { return store_ != nullptr; }

  /// The payload of a frame. False: a front may not send it. An item that finds no room is dropped: requests
  /// with it fail. It finds room if the front has no more memory for images than the engine.
  bool take_pixels(std::span<const std::byte> payload);
  bool take_gone(std::span<const std::byte> payload);

  /// Puts this region's places into a request; no place for an item that is not here, which then fails as one
  /// that was removed. False: it has no media.
  bool translate(Submit& request) const;

  /// Gives all items back.
  void clear();

 private:
  struct Item {
    std::uint64_t generation = 0;  ///< in the front's region
    wire::PatchPlace place;        ///< here; no generation: there was no room
    std::uint64_t bytes = 0;
    bool whole = false;
  };
  bool begin(const PixelPiece& piece);
  void drop(std::map<std::uint64_t, Item>::iterator item);

  const std::shared_ptr<PixelStore> store_;
  std::map<std::uint64_t, Item> items_;  // by offset in the front's region
  std::uint64_t used_ = 0;               // bytes of those that have a place
  // The item of which pieces are missing; none where expected_ is 0.
  wire::PatchPlace begun_;
  std::span<std::byte> room_;
  std::uint64_t filled_ = 0, expected_ = 0;
};

}  // namespace troupe::remote
