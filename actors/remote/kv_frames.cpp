#include "actors/remote/kv_frames.h"

#include <algorithm>

#include "actors/remote/bridge.h"

namespace troupe::remote {
namespace {

constexpr std::size_t kKvPiece = 256 << 10;
constexpr Duration kKvPieceTime = std::chrono::seconds(10);

std::string connection_ended(const Stream& stream) { return "has ended the connection: " + stream.error(); }

}  // namespace

std::string read_all(Stream& stream, std::span<std::byte> into, const std::stop_token& stop) {
  TimePoint heard = Clock::now();
  while (!into.empty()) {
    std::size_t count = 0;
    switch (
        stream.read({reinterpret_cast<char*>(into.data()), into.size()}, count, Clock::now() + kStopLook)) {
      case Stream::Progress::done:
        into = into.subspan(count);
        heard = Clock::now();
        break;
      case Stream::Progress::late:
        if (stop.stop_requested()) return "was left";
        if (Clock::now() - heard >= kLost) return "gave no sign of life for 3 s";
        break;
      case Stream::Progress::failed: return connection_ended(stream);
    }
  }
  return "";
}

std::string write_all(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop) {
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), kKvPiece);
    switch (stream.write(bytes.first(size), Clock::now() + kKvPieceTime, stop)) {
      case Stream::Progress::done: bytes = bytes.subspan(size); break;
      case Stream::Progress::late: return stop.stop_requested() ? "was left" : "took nothing for 10 s";
      case Stream::Progress::failed: return connection_ended(stream);
    }
  }
  return "";
}

}  // namespace troupe::remote
