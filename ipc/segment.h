#pragma once
// Shared memory without a name: a memfd, sealed so that no process can shrink, grow or unseal it, mapped in
// every process that has the descriptor. The kernel frees it with its last user, however that process ended.
// One segment holds two rings, one in each direction, behind a page of control words.
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ipc/fd.h"
#include "ipc/memory_file.h"
#include "ipc/ring.h"
#include "ipc/wakeup.h"

namespace troupe::ipc {

/// The two ends of a link: the upper one is nearer to the clients, the engine's above a worker's, the front's
/// above an engine's. "Down" is from the upper to the lower one.
enum class Side : std::uint32_t { upper = 0, lower = 1 };

enum class SegmentKind : std::uint32_t {
  step = 1,   ///< plans down, results up
  cache = 2,  ///< cache commands down, done and inventory up
};

/// Written by one side, read by the supervisor and the peer.
struct SideWords {
  alignas(kCacheLine) std::atomic<std::int64_t> heartbeat_ns{
      0};                                ///< monotonic; 0 while no process is attached
  std::atomic<std::uint32_t> joined{0};  ///< the last epoch that the process has taken part in; 0: none yet
};

/// The first page of a segment. Fields above `epoch` never change; attach checks them. A link uses the
/// epoch, heartbeats and doorbells of its step segment; those of its cache segment stay zero.
struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;  ///< wire::kVersion
  SegmentKind kind{};
  std::uint64_t bytes = 0;         ///< of the whole segment
  std::uint32_t header_bytes = 0;  ///< where the data of `down` starts; that of `up` follows
  std::uint32_t down_bytes = 0;
  std::uint32_t up_bytes = 0;
  alignas(kCacheLine) std::atomic<std::uint32_t> epoch{0};
  SideWords sides[2];     ///< by Side
  Doorbell doorbells[2];  ///< by the Side that sleeps on it
  RingControl down;
  RingControl up;
};
inline constexpr std::uint64_t kSegmentMagic = 0x31676e6972707274;  // "trpring1"
inline constexpr std::uint32_t kSegmentHeaderBytes = 4096;
static_assert(sizeof(SegmentHeader) <= kSegmentHeaderBytes);

class Segment {
 public:
  /// A new segment with two empty rings in epoch 1. The sizes are RingMemory's.
  static Result<Fd> create(SegmentKind kind, std::uint32_t down_bytes, std::uint32_t up_bytes);

  /// Maps a segment after checking seals, size, magic, version, kind and layout. Does not keep the
  /// descriptor: it may be closed afterwards.
  static Result<Segment> attach(int fd, SegmentKind kind);

  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  SegmentHeader& header() const { return *header_; }
  const RingMemory& down() const { return down_; }
  const RingMemory& up() const { return up_; }

 private:
  Segment(MappedRegion region, std::uint32_t down_bytes, std::uint32_t up_bytes);

  MappedRegion region_;
  SegmentHeader* header_ = nullptr;
  RingMemory down_;
  RingMemory up_;
};

}  // namespace troupe::ipc
