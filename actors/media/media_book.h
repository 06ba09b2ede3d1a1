#pragma once
// What is in memory of pictures: the files of requests, and the patches of prepared pictures, of open
// requests and of earlier ones. Pure: work for threads, answers and what leaves the region of patches are
// left in MediaEffects.
//
//   measure() ─▶ [waits for room for its files] ─▶ measured ─▶ prepare() ─▶ [waits for room for its patches]
//                                                                 ─▶ ready ─▶ release()
//
// A picture is an entry: the same file with the same limits and salt is held, decoded and put into the region
// once, for all requests that have it. Entries that no request uses stay until room is needed, up to a limit,
// the one unused longest goes first. A client's name (`uuid`) leads to an entry among the names of its key
// and salt, and says nothing of its contents.
//
// Nothing waits in a circle: a request gets the room for its files, and later for its patches, as a whole;
// who waits for patches holds files, who has its patches waits for nothing here. The file behind a URL counts
// when it is there: how large it is says its host, and a slow one must keep no room from others. Its request
// waits while there is no room for a file of the usual size, and is refused if the file finds none.
#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "base/status.h"
#include "ipc/fd.h"
#include "media/video/sampling.h"

namespace troupe {

struct MediaBounds {
  std::uint64_t file_bytes = 256u << 20;          ///< of files that are there and not decoded yet
  std::uint64_t patch_bytes = 768u << 20;         ///< of patches
  std::uint64_t cached_bytes = 256u << 20;        ///< of these, those that no request uses
  std::uint64_t most_file_bytes = 64u << 20;      ///< of one file
  std::size_t most_waiting = 256;                 ///< requests that wait for room for files, and for patches
  std::int64_t longest_wait_ns = 30'000'000'000;  ///< for each
  std::string why_not_fetched;                    ///< of every URL; empty: some are
};

/// A request: its I/O thread and exchange.
struct MediaRequestId {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
  auto operator<=>(const MediaRequestId&) const = default;
};

/// A file in memory, sealed.
using MediaFile = std::shared_ptr<const ipc::Fd>;

/// For a thread: fetch or decode base64, and read the header.
struct MeasureWork {
  std::uint64_t ticket = 0;
  http::MediaSource source;
  MediaRequestId request{};
};
/// Of a MeasureWork. Messages continue the name of the item's field.
struct MeasuredFile {
  Status status;
  BlockHash contents;  ///< of the files' bytes
  std::uint64_t bytes = 0;
  PatchGrid grid;
  std::vector<MediaFile> files{};  ///< one, or a picture for each frame of a video
  media::VideoFacts video{};       ///< of a video that is a file
};

/// For a thread: decode what was measured and put its patches into the region.
struct PrepareWork {
  std::uint64_t ticket = 0;
  MediaRequestId request;  ///< the first that wants it
  MediaKind kind = MediaKind::image;
  std::vector<MediaFile> files{};
  media::VideoFacts video{};
  PixelLimits limits{};
  VideoSampling sampling{};

  /// True for what a process for videos decodes.
  bool is_video_file() const { return kind == MediaKind::video && files.size() == 1; }
};
/// Of a PrepareWork; messages likewise. Code::cancelled: it was dropped before it had begun.
struct PreparedPatches {
  Status status;
  BlockHash contents;  ///< of kind, grid and patches
  wire::PatchPlace place;
};

/// What the book wants done.
struct MediaEffects {
  struct Measured {
    MediaRequestId request;
    MeasuredMedia answer;
  };
  struct Ready {
    MediaRequestId request;
    MediaReady answer;
    std::size_t decoded = 0;  ///< items that were not in memory
  };
  std::vector<MeasureWork> measure;
  std::vector<PrepareWork> prepare;
  /// Tickets of work that need not begin; a PrepareWork has an outcome all the same.
  std::vector<std::uint64_t> drop;
  std::vector<wire::PatchPlace> remove;
  std::vector<Measured>
      measured;              ///< exactly one for each measure() of a request that is not released before
  std::vector<Ready> ready;  ///< likewise for each prepare()
};

/// Used by one thread. Times are of one clock.
class MediaBook {
 public:
  /// `key`: random bits that clients never see.
  MediaBook(const MediaBounds& bounds, const HashKey& key) : bounds_(bounds), key_(key) {}

  /// The request must not be open.
  void measure(MeasureMedia&& request, std::int64_t now_ns, MediaEffects& effects);
  /// The outcome of a MeasureWork, once for each.
  void measured(std::uint64_t ticket, MeasuredFile&& file, MediaEffects& effects);

  /// After a good answer to measure(), at most once.
  void prepare(const MediaRequestId& request, std::int64_t now_ns, MediaEffects& effects);
  /// The outcome of a PrepareWork, once for each.
  void prepared(std::uint64_t ticket, PreparedPatches&& patches, MediaEffects& effects);

  /// The request has ended; nothing when it is not known. Nothing is answered for it any more.
  void release(const MediaRequestId& request, MediaEffects& effects);

  /// Refuses requests that have waited for room for longer than MediaBounds::longest_wait_ns.
  void refuse_late(std::int64_t now_ns, MediaEffects& effects);
  bool waits() const { return !for_files_.empty() || !for_patches_.empty(); }

  /// Bytes, as they count against the bounds.
  std::uint64_t file_bytes() const { return file_bytes_; }
  std::uint64_t patch_bytes() const { return patch_bytes_; }
  std::uint64_t cached_bytes() const { return cached_bytes_; }
  std::size_t requests() const { return requests_.size(); }
  std::size_t entries() const { return entries_.size(); }

  /// But for MediaStats::decodes_running and decodes_waiting.
  MediaStats stats() const;
  /// PrepareWork without an outcome yet: what a process for videos decodes, or the rest.
  std::int32_t in_work(bool video_files) const { return in_work_[video_files ? 1 : 0]; }

 private:
  using EntryId = std::uint64_t;  ///< the ticket of its preparation
  struct Entry {
    enum class State : std::uint8_t { measured, in_work, ready, failed };
    State state = State::measured;
    BlockHash key;
    PatchGrid grid;
    PrepareWork work;               ///< its files until they are decoded
    std::uint64_t file_bytes = 0;   ///< likewise
    std::uint64_t patch_bytes = 0;  ///< in the region, or kept free for it there; 0 before
    BlockHash contents;
    wire::PatchPlace place;
    Status failure;
    int uses = 0;  ///< by items of open requests
    std::vector<BlockHash> names;
    std::list<EntryId>::iterator unused;  ///< its place in unused_, when it is there
  };
  struct Item {
    http::MediaSource source;  ///< its data until it is measured
    BlockHash name;            ///< zero: none
    std::optional<EntryId> entry;
  };
  struct Request {
    BlockHash salt;
    std::vector<Item> items;
    std::size_t unmeasured = 0;
    std::uint64_t file_bytes = 0;  ///< that its files may have until they are measured, but for fetched ones
    std::uint64_t likely_bytes = 0;   ///< of those that are fetched
    std::uint64_t fetched_bytes = 0;  ///< of these, so far
    std::int64_t waits_since_ns = 0;
    bool wants_measured = true;  ///< measure() is not answered
    bool wants_ready = false;    ///< likewise prepare()
    std::size_t decoded = 0;
    std::size_t begun = 0;  ///< items that it has had decoded
  };
  using Requests = std::map<MediaRequestId, Request>;
  struct Measuring {
    MediaRequestId request;
    std::size_t item = 0;
    std::uint64_t bytes = 0;  ///< of its file, at most; 0 of one that is fetched
    bool is_fetched = false;
  };

  Status take_item(Request& request, const MeasureMedia& from, http::MediaSource&& source);
  BlockHash name_of(const MeasureMedia& from, const http::MediaSource& source) const;
  BlockHash key_of(const Request& request, const BlockHash& file, const http::MediaSource& source) const;
  EntryId enter(const Request& request, const http::MediaSource& source, MeasuredFile&& file);
  void give_name(EntryId id, const BlockHash& name);
  void use(EntryId id);
  void leave(EntryId id, MediaEffects& effects);
  void erase(EntryId id, MediaEffects& effects);
  void trim(std::uint64_t most, MediaEffects& effects);

  void admit(MediaEffects& effects);
  void begin_measuring(Requests::iterator at, MediaEffects& effects);
  void finish_measuring(Requests::iterator at, MediaEffects& effects);
  void begin_preparing(Requests::iterator at, MediaEffects& effects);
  void finish_preparing(Requests::iterator at, MediaEffects& effects);
  std::uint64_t wanted_patches(const Request& request, bool all) const;
  Status take_fetched(Request& request, const MeasuredFile& file, bool is_known);
  void refuse_measure(Requests::iterator at, Status status, MediaEffects& effects);
  void refuse_prepare(Requests::iterator at, Status status, MediaEffects& effects);
  void forget(Requests::iterator at, MediaEffects& effects);
  void refuse_waiting(std::deque<MediaRequestId>& queue, std::int64_t since_ns, MediaEffects& effects);

  const MediaBounds bounds_;
  const HashKey key_;
  Requests requests_;
  std::map<EntryId, Entry> entries_;
  std::map<BlockHash, EntryId> by_key_;
  std::map<BlockHash, EntryId> by_name_;
  std::map<std::uint64_t, Measuring> measuring_;  // by ticket
  std::list<EntryId> unused_;                     // ready and without a use, the latest first
  std::deque<MediaRequestId> for_files_, for_patches_;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t file_bytes_ = 0, patch_bytes_ = 0, cached_bytes_ = 0;
  std::array<std::int32_t, 2> in_work_{};
  std::int64_t hits_ = 0, misses_ = 0, refused_ = 0;
};

}  // namespace troupe
