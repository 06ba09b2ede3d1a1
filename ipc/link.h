#pragma once
// One rank's queues: the step segment (plans down, results up) and the cache segment (cache commands
// down, done and inventory up). The supervisor creates a Link and hands its two descriptors to engine
// and worker; each attaches its end.
//
// Epoch. The step segment carries the current epoch, the records carry the one they were written in.
// The supervisor calls LinkMonitor::reaped() when a process has ended and before it starts the successor:
// that raises the epoch and wakes both sides. The survivor gets Received::Kind::epoch_changed once; from then
// on it writes the new epoch, and records of the old one are dropped unread and counted. A process that
// attaches later starts in the current epoch and gets no epoch_changed.
//
// Threads: receive() and done() belong to one thread, try_send() to one thread per channel (it may be
// another); everything else may be called from anywhere.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ipc/segment.h"
#include "ipc/wire.h"

namespace troupe::ipc {

struct LinkFds {
  Fd step;
  Fd cache;
};

/// Of the step ring down, half is for plans: so much holds those that may be in flight, with their padding.
inline constexpr std::uint32_t kRoomForPlans = 4u << 20;
/// Bytes of one row's mask for a vocabulary of 103,424 ids, with its share of the record.
inline constexpr std::uint32_t kBytesOfMask = 13u << 10;

struct LinkSizes {
  std::uint32_t step_down = 2 * kRoomForPlans;  ///< plans and masks
  std::uint32_t step_up = 4u << 20;
  std::uint32_t cache_down = 256u << 10;
  std::uint32_t cache_up = 256u << 10;

  /// With room for the masks of a step in which so many sequences sample. When there are more bytes of masks,
  /// of a larger vocabulary or of several steps, WORKER LINK keeps some until the worker has read others.
  static LinkSizes for_sequences(std::uint32_t sequences) {
    return {.step_down = 2 * std::bit_ceil(std::clamp(sequences * kBytesOfMask, kRoomForPlans, 64u << 20))};
  }
};

// A ring takes records of up to half its data, less a frame.
static_assert(RingMemory{.capacity = LinkSizes{}.step_up}.max_record() >= wire::kMaxResultBytes);

Result<LinkFds> create_link(const LinkSizes& sizes = {});

enum class Channel : std::uint32_t { step = 0, cache = 1 };

struct QueueDepth {
  const char* name = "";  ///< plan, result, cache_down, cache_up
  std::uint32_t records = 0;
  std::uint32_t bytes = 0;
  std::uint32_t capacity_bytes = 0;
};

/// The supervisor's view of a link: it is neither end and reads both.
class LinkMonitor {
 public:
  /// Does not keep the descriptors.
  static Result<LinkMonitor> attach(int step_fd, int cache_fd);

  std::uint32_t epoch() const { return header().epoch.load(std::memory_order_acquire); }

  /// Sets the epoch and wakes both sides.
  void set_epoch(std::uint32_t epoch);

  /// A side's process has ended and was waited for. Clears what it has said of itself, raises the epoch by
  /// one and wakes both sides. Call it before the successor starts. Returns the new epoch.
  std::uint32_t reaped(Side side);

  /// Monotonic time of the side's last heartbeat, or a little more after signs of progress; 0 while it is not
  /// attached. An attached end beats at every receive() and at least twice a second while it waits there,
  /// unless beat_elsewhere() was called.
  std::int64_t heartbeat_ns(Side side) const;

  /// The last epoch of which the side's process has called LinkEnd::join(); 0: of none. Stays when the
  /// process has ended, until reaped().
  std::uint32_t joined(Side side) const;

  /// Of the four rings, in the order plan, result, cache_down, cache_up.
  std::vector<QueueDepth> depths() const;

 protected:
  LinkMonitor(Segment step, Segment cache) : step_(std::move(step)), cache_(std::move(cache)) {}

  SegmentHeader& header() const { return step_.header(); }
  const RingMemory& ring(Channel channel, Side reader) const;

  Segment step_;
  Segment cache_;
};

/// What receive() returned.
struct Received {
  enum class Kind {
    record,         ///< `view` is valid until done() or the next receive()
    timeout,        ///< the deadline passed
    epoch_changed,  ///< the other process was replaced; what was in flight is lost; epoch() is the new one
    corrupt,        ///< `channel` held a malformed record and was emptied: the peer is broken
  };
  Kind kind = Kind::timeout;
  Channel channel = Channel::step;
  wire::RecordView view{};
};

/// One end of a link. Use UpperEnd and LowerEnd.
class LinkEnd : public LinkMonitor {
 public:
  /// The epoch to write into the next record: the one this end has been told of, not necessarily the
  /// newest. A record written in an epoch that has just passed is dropped by the peer.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  /// Copies a finished record into the channel and wakes the peer. False when the ring is full: nothing
  /// was sent. The record's length is at most max_record(channel); a longer one is a bug of the caller.
  /// `leave`: also false when fewer bytes than that would stay free in the ring, unless it is empty.
  bool try_send(Channel channel, std::span<const std::byte> record, std::size_t leave = 0);
  std::size_t max_record(Channel channel) const;
  /// Bytes of the ring that try_send() writes to.
  std::size_t capacity(Channel channel) const { return ring(channel, other(side_)).capacity; }

  /// Waits for a record of either channel, after releasing the one before. What the peer sent in the
  /// cache channel before a step record is received before it: plans depend on cache commands. A
  /// deadline in the past polls.
  Received receive(TimePoint deadline);

  /// Releases the last record now instead of at the next receive(): the peer gets its space back earlier.
  void done();

  /// A heartbeat from a thread that is not in receive(). Cheap; may be called often.
  void beat() { beat_at(Clock::now()); }

  /// receive() beats no more: who calls beat() from now on speaks for the whole process. Before the first
  /// receive().
  void beat_elsewhere() { beats_in_receive_ = false; }

  /// This side's heartbeat, for the thread that receives: between two calls of receive() it may raise the
  /// word as a sign of progress.
  std::atomic<std::int64_t>& heartbeat() { return header().sides[static_cast<int>(side_)].heartbeat_ns; }

  /// This side is ready in epoch(): who loses it now loses something.
  void join() { header().sides[static_cast<int>(side_)].joined.store(epoch(), std::memory_order_relaxed); }

  /// Records of another epoch that were dropped.
  std::uint64_t stale_records() const { return stale_.load(std::memory_order_relaxed); }

  /// How long receive() spins before it parks.
  void set_spin(Duration spin) { spin_ = spin; }

  LinkEnd(LinkEnd&&) noexcept;
  LinkEnd& operator=(LinkEnd&&) = delete;
  /// Leaves the link: clears this side's heartbeat.
  ~LinkEnd();

 protected:
  LinkEnd(LinkMonitor link, Side side);

 private:
  static Side other(Side side) { return side == Side::upper ? Side::lower : Side::upper; }
  void beat_at(TimePoint now);

  enum class Look { nothing, found, epoch_changed };
  Look look(Channel channel, Received& out);
  Look look_at_both(Received& out);

  Side side_;
  bool attached_ = true;
  bool beats_in_receive_ = true;
  Duration spin_ = kDefaultSpin;
  RingProducer senders_[2];       // by Channel
  RingConsumer receivers_[2];     // by Channel
  RingConsumer* held_ = nullptr;  // holds the record that receive() returned last
  std::atomic<std::uint32_t> epoch_;
  std::atomic<std::uint64_t> stale_{0};
};

class UpperEnd final : public LinkEnd {
 public:
  /// Attaches and wakes the peer. Does not keep the descriptors. One per process and link.
  static Result<UpperEnd> attach(int step_fd, int cache_fd);

 private:
  using LinkEnd::LinkEnd;
};

class LowerEnd final : public LinkEnd {
 public:
  /// As UpperEnd::attach().
  static Result<LowerEnd> attach(int step_fd, int cache_fd);

 private:
  using LinkEnd::LinkEnd;
};

}  // namespace troupe::ipc
