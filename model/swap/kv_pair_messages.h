#pragma once
// What the two ends of a pair (kv_pair.h) say to each other: a packet each on a SOCK_SEQPACKET socket.
//
//   receiver                              sender
//   PairHello             ──▶
//                         ◀──             PairAnswer: welcome, or refused and the end
//   PairMeeting           ──▶             both begin to look for each other by this id
//   PairRequest           ──▶
//                         ◀──             PairAnswer: sending; then both move the blocks
//
// A packet of another size or order ends the pair.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/ids.h"
#include "base/owned_fd.h"
#include "base/status.h"

namespace troupe::model {

inline constexpr std::uint32_t kPairMagic = 0x72696170;
inline constexpr std::uint32_t kPairVersion = 1;  ///< rises with every change of anything here
inline constexpr std::size_t kMostPairBlocks = 64;
inline constexpr std::size_t kMostPairSlices = 4;

/// A KvSlice, as the sender reads it.
struct PairSlice {
  std::uint64_t from = 0;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  std::uint64_t from_pitch = 0;
};

struct PairHello {
  std::uint32_t magic = kPairMagic;
  std::uint32_t version = kPairVersion;
  std::uint64_t life = 0;         ///< of the sender's KV memory, its rank's own
  std::uint64_t block_bytes = 0;  ///< of a block of the sender
  std::int32_t library = 0;       ///< version of the receiver's NCCL, 22809 for 2.28.9
  std::uint32_t batch = 0;        ///< most blocks of a request, up to kMostPairBlocks
  std::uint32_t slices = 0;       ///< that are set
  std::uint32_t padding = 0;
  char gpu[32] = {};  ///< PCI address of the receiver's GPU; ends with a zero
  PairSlice slice[kMostPairSlices];
};

struct PairAnswer {
  enum class Kind : std::uint32_t { welcome = 1, refused, sending };
  Kind kind = Kind::welcome;
  std::uint32_t padding = 0;
  std::uint64_t number = 0;  ///< of the request, for `sending`
  char why[512] = {};        ///< of `refused`; ends with a zero
};

struct PairMeeting {
  std::byte id[128] = {};
};

struct PairRequest {
  std::uint64_t number = 0;  ///< from 1 on
  std::uint32_t count = 0;
  BlockId block[kMostPairBlocks] = {};
};

/// One end's socket. Any thread may call any function.
class PairSocket {
 public:
  explicit PairSocket(OwnedFd fd) : fd_(std::move(fd)) {}

  /// A connected pair of sockets.
  static Status make(OwnedFd& one, OwnedFd& other);

  /// False: the other end has gone. Never waits: the packets of a pair fit into any socket's buffer.
  template <class T>
  bool send(const T& packet) {
    static_assert(std::is_trivially_copyable_v<T>);
    return send_bytes(std::as_bytes(std::span(&packet, 1)));
  }
  enum class Got { packet, nothing, end };
  /// `nothing` at the deadline; `end`: the other end or this one has gone, or sends something else.
  template <class T>
  Got receive(T& packet, TimePoint deadline) {
    static_assert(std::is_trivially_copyable_v<T>);
    return receive_bytes(std::as_writable_bytes(std::span(&packet, 1)), deadline);
  }
  /// True if the other end has gone, or this one was closed.
  bool has_ended() const;
  /// Both ends end: calls that wait return.
  void close();

 private:
  bool send_bytes(std::span<const std::byte> bytes);
  Got receive_bytes(std::span<std::byte> bytes, TimePoint deadline);

  const OwnedFd fd_;
};

/// Copies as much of the text as there is room for, with a zero behind it.
void put_text(std::span<char> into, const std::string& text);
/// The text up to the first zero, without control characters.
std::string text_in(std::span<const char> from);

}  // namespace troupe::model
