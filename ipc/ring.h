#pragma once
// A bounded queue of variable-length records between exactly one producer and one consumer, which may
// be two processes that share nothing but this memory. README.md beside it has its format.
//
//   RingControl   | tail cursor (producer's line) | head cursor (consumer's line) |
//   data          | frame payload…pad8 | frame payload…pad8 |      free      |
//                   ^ head                                  ^ tail
//
// A frame is one 8-byte word, {payload bytes, mark}; the payload follows and is rounded up to 8 bytes.
// A record is contiguous: where it would run over the end of the data, a padding frame covers the rest
// and the record starts at offset 0. The largest record is therefore half the data less one frame: that
// much is always free, in one piece or behind the padding, once the consumer has caught up.
//
// A cursor is one 64-bit word: the low half counts 8-byte units ever passed, the high half records ever
// passed, both modulo 2^32. One store moves both, so that depth in bytes and in records always agree.
//
//   step of the producer              state if it is killed right after
//   1. write padding, frame, payload   unpublished: the next producer overwrites it
//   2. tail ← new cursor (release)     published: the record is whole
//   step of the consumer
//   1. tail → (acquire), read frame    the record stays; the next consumer sees it again
//   2. head ← new cursor (release)     consumed; the space is the producer's again
//
// Nothing else is shared, so a kill at any instruction leaves the ring usable. The price: a record may be
// delivered twice when a consumer dies; the epoch in every record tells the second one apart.
//
// Each side trusts its own cursor and checks the other's: an impossible length, mark or cursor is
// reported as corrupt, and no access ever leaves the data, whatever the peer wrote.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"

namespace troupe::ipc {

inline constexpr std::size_t kCacheLine = 64;

/// The shared words of one ring. Zero is an empty ring.
struct RingControl {
  alignas(kCacheLine) std::atomic<std::uint64_t> tail{0};  ///< written by the producer alone
  alignas(kCacheLine) std::atomic<std::uint64_t> head{0};  ///< written by the consumer alone
};
static_assert(sizeof(RingControl) == 2 * kCacheLine && std::atomic<std::uint64_t>::is_always_lock_free);

/// Where a ring lies. `capacity` is the size of the data: a power of two from 4 KiB to 1 GiB, checked by
/// whoever makes this from untrusted memory.
struct RingMemory {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::uint32_t capacity = 0;

  static constexpr bool valid_capacity(std::uint64_t bytes) {
    return bytes >= 4096 && bytes <= (1u << 30) && (bytes & (bytes - 1)) == 0;
  }
  /// Longest record, in bytes.
  constexpr std::size_t max_record() const { return capacity / 2 - 8; }
};

/// What waits in a ring, frames and padding included. May be read by any thread or process.
struct RingDepth {
  std::uint32_t records = 0;
  std::uint32_t bytes = 0;
};

namespace ring_detail {

inline constexpr std::uint32_t kUnit = 8;
inline constexpr std::uint32_t kRecordMark = 0x52454344;   // a payload of `bytes` follows
inline constexpr std::uint32_t kPaddingMark = 0x50414444;  // nothing until the end of the data

struct Frame {
  std::uint32_t bytes = 0;
  std::uint32_t mark = 0;
};
static_assert(sizeof(Frame) == kUnit);

struct Cursor {
  std::uint32_t units = 0;
  std::uint32_t records = 0;

  static Cursor of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }
  std::uint64_t word() const { return std::uint64_t{records} << 32 | units; }
};

/// Units of a record with its frame.
constexpr std::uint32_t units_of(std::size_t payload_bytes) {
  return 1 + static_cast<std::uint32_t>((payload_bytes + kUnit - 1) / kUnit);
}

/// True when pushes and pops can lead to this pair of cursors.
constexpr bool plausible(Cursor head, Cursor tail, std::uint32_t capacity_units) {
  const std::uint32_t used = tail.units - head.units;
  const std::uint32_t records = tail.records - head.records;
  return used <= capacity_units && records <= used / 2 && (records == 0) == (used == 0);
}

}  // namespace ring_detail

inline RingDepth ring_depth(const RingMemory& ring) {
  using namespace ring_detail;
  // The two words cannot be read at once: an old head and a new tail may be further apart than the ring is
  // long. Such a pair is read again; a pair that stays impossible means a corrupt ring.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const Cursor head = Cursor::of(ring.control->head.load(std::memory_order_acquire));
    const Cursor tail = Cursor::of(ring.control->tail.load(std::memory_order_acquire));
    if (plausible(head, tail, ring.capacity / kUnit)) {
      return {tail.records - head.records, (tail.units - head.units) * kUnit};
    }
  }
  return {};
}

/// The writing end. One object at a time, used by one thread. After its process has died another may be made
/// over the same memory.
class RingProducer {
 public:
  RingProducer() = default;
  /// Continues where the last producer published. If head and tail are inconsistent (the writer died in the
  /// middle of an update), the ring is reset to empty.
  explicit RingProducer(const RingMemory& ring) : ring_(ring), mask_(ring.capacity / ring_detail::kUnit - 1) {
    using namespace ring_detail;
    tail_ = Cursor::of(ring_.control->tail.load(std::memory_order_relaxed));
    head_ = Cursor::of(ring_.control->head.load(std::memory_order_acquire));
    if (!plausible(head_, tail_, mask_ + 1)) {
      tail_ = head_;
      ring_.control->tail.store(tail_.word(), std::memory_order_release);
    }
  }

  /// Copies one record in and publishes it. False when there is no room now, and nothing has changed.
  /// 1 … max_record() bytes; another length is a bug of the caller. `leave`: also false when fewer bytes than
  /// that would stay free, unless the ring is empty.
  bool try_push(std::span<const std::byte> record, std::size_t leave = 0) {
    using namespace ring_detail;
    TROUPE_CHECK(!record.empty() && record.size() <= ring_.max_record());
    const std::uint32_t at = tail_.units & mask_;
    const std::uint32_t to_end = mask_ + 1 - at;
    const std::uint32_t need = units_of(record.size());
    const std::uint32_t padding = need > to_end ? to_end : 0;
    if (!has_room(padding + need, static_cast<std::uint32_t>(leave / kUnit))) return false;

    if (padding != 0) put_frame(at, {padding * kUnit - kUnit, kPaddingMark});
    const std::uint32_t start = (at + padding) & mask_;
    put_frame(start, {static_cast<std::uint32_t>(record.size()), kRecordMark});
    std::memcpy(ring_.data + std::size_t{start} * kUnit + kUnit, record.data(), record.size());
    tail_ = {tail_.units + padding + need, tail_.records + 1};
    ring_.control->tail.store(tail_.word(), std::memory_order_release);
    return true;
  }

  const RingMemory& memory() const { return ring_; }

 private:
  bool has_room(std::uint32_t units, std::uint32_t leave) {
    if (fits(units + leave)) return true;
    head_ = ring_detail::Cursor::of(ring_.control->head.load(std::memory_order_acquire));
    return fits(head_.units == tail_.units ? units : units + leave);
  }
  // An impossible head counts as a full ring.
  bool fits(std::uint32_t units) const {
    const std::uint32_t used = tail_.units - head_.units;
    return used <= mask_ + 1 && units <= mask_ + 1 - used;
  }
  void put_frame(std::uint32_t unit, ring_detail::Frame frame) {
    std::memcpy(ring_.data + std::size_t{unit} * ring_detail::kUnit, &frame, sizeof frame);
  }

  RingMemory ring_;
  std::uint32_t mask_ = 0;    // in units
  ring_detail::Cursor tail_;  // authoritative; shared memory holds a copy
  ring_detail::Cursor head_;  // last seen; the consumer may be ahead of it
};

/// The reading end. One object at a time, used by one thread, as RingProducer.
class RingConsumer {
 public:
  enum class Peek { empty, record, corrupt };

  RingConsumer() = default;
  /// Continues where the last consumer stopped. Resets inconsistent cursors as RingProducer does.
  explicit RingConsumer(const RingMemory& ring) : ring_(ring), mask_(ring.capacity / ring_detail::kUnit - 1) {
    using namespace ring_detail;
    head_ = Cursor::of(ring_.control->head.load(std::memory_order_relaxed));
    tail_ = Cursor::of(ring_.control->tail.load(std::memory_order_acquire));
    if (!plausible(head_, tail_, mask_ + 1)) resync();
  }

  /// The oldest record, in place: 8-byte aligned, valid until pop(). Cheap when empty: one load.
  Peek peek(std::span<const std::byte>& out) {
    using namespace ring_detail;
    if (head_.units == tail_.units) {
      tail_ = Cursor::of(ring_.control->tail.load(std::memory_order_acquire));
      if (head_.units == tail_.units && head_.records == tail_.records) return Peek::empty;
      if (!plausible(head_, tail_, mask_ + 1)) return Peek::corrupt;
    }
    const std::uint32_t available = tail_.units - head_.units;
    std::uint32_t at = head_.units & mask_;
    std::uint32_t skipped = 0;
    Frame frame = frame_at(at);
    if (frame.mark == kPaddingMark) {
      skipped = mask_ + 1 - at;
      if (at == 0 || frame.bytes != skipped * kUnit - kUnit || skipped >= available) return Peek::corrupt;
      at = 0;
      frame = frame_at(0);
    }
    if (frame.mark != kRecordMark || frame.bytes == 0 || frame.bytes > ring_.max_record())
      return Peek::corrupt;
    const std::uint32_t need = units_of(frame.bytes);
    if (need > available - skipped || need > mask_ + 1 - at) return Peek::corrupt;
    peeked_ = skipped + need;
    out = {ring_.data + std::size_t{at} * kUnit + kUnit, frame.bytes};
    return Peek::record;
  }

  /// True when peek() would not say empty: one load, nothing is changed.
  bool ready() const { return ring_.control->tail.load(std::memory_order_acquire) != head_.word(); }

  /// Releases the record that peek() returned; the producer may overwrite it.
  void pop() {
    TROUPE_CHECK(peeked_ != 0);
    head_ = {head_.units + peeked_, head_.records + 1};
    peeked_ = 0;
    ring_.control->head.store(head_.word(), std::memory_order_release);
  }

  /// After corrupt: drops everything published so far. What comes next starts at a frame again, unless
  /// the producer's cursor itself was damaged in its memory.
  void resync() {
    tail_ = ring_detail::Cursor::of(ring_.control->tail.load(std::memory_order_acquire));
    head_ = tail_;
    peeked_ = 0;
    ring_.control->head.store(head_.word(), std::memory_order_release);
  }

  const RingMemory& memory() const { return ring_; }

 private:
  ring_detail::Frame frame_at(std::uint32_t unit) const {
    ring_detail::Frame frame;  // copied once: the peer may change the original during the checks
    std::memcpy(&frame, ring_.data + std::size_t{unit} * ring_detail::kUnit, sizeof frame);
    return frame;
  }

  RingMemory ring_;
  std::uint32_t mask_ = 0;
  std::uint32_t peeked_ = 0;  // units of the peeked record with its padding; 0 none
  ring_detail::Cursor head_;  // authoritative; shared memory holds a copy
  ring_detail::Cursor tail_;  // last seen
};

}  // namespace troupe::ipc
