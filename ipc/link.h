#pragma once
// One rank's queues: the step segment (plans down, results up) and the cache segment (cache commands
// down, done and inventory up). The supervisor creates a Link and hands its two descriptors to engine
// and worker; each attaches its end.
//
// Epoch. The step segment carries the current epoch, the records carry the one they were written in.
// Whoever reaps a process calls LinkMonitor::reaped() before it starts the successor: that raises the
// epoch and wakes both sides. The survivor gets Received::Kind::epoch_changed once; from then on it
// writes the new epoch, and what is left of the old one in any ring is dropped unread and counted.
// A process that attaches later starts in the current epoch and is told nothing.
//
// Threads: receive() and done() belong to one thread, try_send() to one thread per channel (it may be
// another); everything else may be called from anywhere.
#include <atomic>
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

struct LinkSizes {
  std::uint32_t step_down = 4u << 20;
  std::uint32_t step_up = 4u << 20;
  std::uint32_t cache_down = 256u << 10;
  std::uint32_t cache_up = 256u << 10;
};

Result<LinkFds> create_link(const LinkSizes& sizes = {});

enum class Channel : std::uint32_t { step = 0, cache = 1 };

struct QueueDepth {
  const char* name = "";  ///< plan, result, cache_down, cache_up
  std::uint32_t records = 0;
  std::uint32_t bytes = 0;
  std::uint32_t capacity_bytes = 0;
};

/// A link seen from outside: neither end, but the supervisor's view of both.
class LinkMonitor {
 public:
  /// Does not keep the descriptors.
  static Result<LinkMonitor> attach(int step_fd, int cache_fd);

  std::uint32_t epoch() const { return header().epoch.load(std::memory_order_acquire); }

  /// Sets the epoch and wakes both sides.
  void set_epoch(std::uint32_t epoch);

  /// A side has died and been waited for: its words are cleared, the epoch rises by one, both doorbells
  /// are rung. Call it before the successor starts. Returns the new epoch.
  std::uint32_t reaped(Side side);

  /// Monotonic time of the side's last sign of life; 0 when it has not attached yet. An attached end gives
  /// one at least twice a second while it is in receive(), and one at every call of it.
  std::int64_t heartbeat_ns(Side side) const;
  std::int64_t pid(Side side) const;

  /// Of the four rings, in the order plan, result, cache_down, cache_up.
  std::vector<QueueDepth> depths() const;

 protected:
  LinkMonitor(Segment step, Segment cache) : step_(std::move(step)), cache_(std::move(cache)) {}

  SegmentHeader& header() const { return step_.header(); }
  const RingMemory& ring(Channel channel, Side reader) const;

  Segment step_;
  Segment cache_;
};

/// What receive() came back with.
struct Received {
  enum class Kind {
    record,         ///< `view` is valid until done() or the next receive()
    timeout,        ///< the deadline passed
    epoch_changed,  ///< the other side was replaced: forget what was in flight; epoch() is the new one
    corrupt,        ///< `channel` held no sound record and was emptied: the peer is broken
  };
  Kind kind = Kind::timeout;
  Channel channel = Channel::step;
  wire::RecordView view{};
};

/// One end of a link. Use EngineEnd and WorkerEnd.
class LinkEnd : public LinkMonitor {
 public:
  /// The epoch to write into the next record: the one this end has been told of, not necessarily the
  /// newest. A record written in an epoch that has just passed is dropped by the peer.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  /// Copies a finished record into the channel and wakes the peer. False when the ring is full: nothing
  /// was sent. The record's length is at most max_record(channel); a longer one is a bug of the caller.
  bool try_send(Channel channel, std::span<const std::byte> record);
  std::size_t max_record(Channel channel) const;

  /// Waits for a record of either channel, after releasing the one before. What the peer sent in the
  /// cache channel before a step record is received before it: plans depend on cache commands. A
  /// deadline in the past polls.
  Received receive(TimePoint deadline);

  /// Releases the last record before the next receive(), so that the peer has its room earlier.
  void done();

  /// A sign of life from a thread that is busy elsewhere than in receive(); may be called often.
  void beat() { beat_at(Clock::now()); }
  std::int64_t peer_heartbeat_ns() const { return heartbeat_ns(other(side_)); }

  /// Records of another epoch that were dropped.
  std::uint64_t stale_records() const { return stale_.load(std::memory_order_relaxed); }

  /// How long receive() spins before it parks.
  void set_spin(Duration spin) { spin_ = spin; }

  LinkEnd(LinkEnd&&) noexcept;
  LinkEnd& operator=(LinkEnd&&) = delete;
  /// Leaves the link: this side's words are cleared.
  ~LinkEnd();

 protected:
  LinkEnd(LinkMonitor link, Side side);

 private:
  static Side other(Side side) { return side == Side::engine ? Side::worker : Side::engine; }
  void beat_at(TimePoint now);

  enum class Look { nothing, found, epoch_changed };
  Look look(Channel channel, Received& out);
  Look look_at_both(Received& out);

  Side side_;
  bool attached_ = true;
  Duration spin_ = kDefaultSpin;
  RingProducer senders_[2];       // by Channel
  RingConsumer receivers_[2];     // by Channel
  RingConsumer* held_ = nullptr;  // holds the record that receive() returned last
  std::atomic<std::uint32_t> epoch_;
  std::atomic<std::uint64_t> stale_{0};
};

class EngineEnd final : public LinkEnd {
 public:
  /// Attaches and wakes the peer. Does not keep the descriptors. One per process and link.
  static Result<EngineEnd> attach(int step_fd, int cache_fd);

 private:
  using LinkEnd::LinkEnd;
};

class WorkerEnd final : public LinkEnd {
 public:
  /// Likewise.
  static Result<WorkerEnd> attach(int step_fd, int cache_fd);

 private:
  using LinkEnd::LinkEnd;
};

}  // namespace troupe::ipc
