#pragma once
// What relays send each other: frames, one after the other, in one TLS connection.
//
//   {u32 bytes of the payload, u32 kind}  payload  zeros up to a multiple of 8
//
// After the greeting only beats, records, names, `draining`, and patches of images come. A record is one of
// the link's rings (ipc/README.md, "Between front and engine"); its epoch is the sender's, and is overwritten
// on arrival.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/wire.h"

namespace troupe::remote {

enum class FrameKind : std::uint32_t {
  greeting = 0x47525431,  ///< JSON: who the front's relay is, and what its server has; the first frame
  welcome,                ///< the same of the engine's relay, which answers
  refusal,                ///< or a sentence, before it closes
  beat,                   ///< u64; from the engine's side: the engine's heartbeat, 0 while it is not attached
  record,                 ///< a wire::Message with its bytes
  names,                  ///< from the engine's side: what has changed among the names of its KV blocks
  draining,               ///< nothing; from the engine's side: it wants no new requests
  pixels,                 ///< from the front's side: a PixelPiece and patches of an image or a video
  pixels_gone,            ///< from the front's side: the places of items that it has removed
};

inline constexpr std::size_t kMostGreetingBytes = 64 << 10;

struct Frame {
  FrameKind kind{};
  std::span<std::byte> payload;  ///< at a multiple of 8
};

/// Appends a frame.
void put_frame(std::vector<std::byte>& out, FrameKind kind, std::span<const std::byte> payload);

/// Frames out of the bytes as they come, in pieces of any length. What it holds is bounded by the longest
/// frame that may come.
class FrameReader {
 public:
  enum class Got {
    nothing,  ///< more bytes are needed
    frame,    ///< valid until the next call of any function
    bad,      ///< these bytes are no frames; nothing more can be read
  };

  /// Where the next bytes go: at least 16 KiB.
  std::span<char> room();
  /// So many have been put there.
  void filled(std::size_t bytes) { end_ += bytes; }

  /// `greets`: only the greeting's kinds may come; else only the others.
  Got next(bool greets, Frame& out);

 private:
  std::vector<std::uint64_t> words_;  // aligned
  std::size_t begin_ = 0, end_ = 0;   // bytes that have come and were not taken

  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
};

}  // namespace troupe::remote
