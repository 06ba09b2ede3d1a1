#include "actors/remote/frames.h"

#include <cstring>

#include "actors/remote/name_changes.h"
#include "actors/remote/pixels.h"

namespace troupe::remote {
namespace {

struct FrameHead {
  std::uint32_t bytes = 0;
  FrameKind kind{};
};
static_assert(sizeof(FrameHead) == 8);

constexpr std::size_t kRoom = 64 << 10;

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

bool is_allowed(const FrameHead& head, bool greets) {
  switch (head.kind) {
    case FrameKind::greeting:
    case FrameKind::welcome:
    case FrameKind::refusal: return greets && head.bytes <= kMostGreetingBytes;
    case FrameKind::beat: return !greets && head.bytes == sizeof(std::uint64_t);
    case FrameKind::record:
      return !greets && head.bytes >= sizeof(wire::Message) && head.bytes <= wire::kMaxRecordBytes;
    case FrameKind::names: return !greets && head.bytes <= kMostNameBytes;
    case FrameKind::draining: return !greets && head.bytes == 0;
    case FrameKind::pixels:
    case FrameKind::pixels_gone: return !greets && head.bytes != 0 && head.bytes <= kMostPixelBytes;
  }
  return false;
}

}  // namespace

void put_frame(std::vector<std::byte>& out, FrameKind kind, std::span<const std::byte> payload) {
  const FrameHead head{static_cast<std::uint32_t>(payload.size()), kind};
  const std::size_t at = out.size();
  out.resize(at + sizeof head + padded(payload.size()));
  std::memcpy(out.data() + at, &head, sizeof head);
  if (!payload.empty()) std::memcpy(out.data() + at + sizeof head, payload.data(), payload.size());
}

std::span<char> FrameReader::room() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (words_.size() * 8 - end_ < kRoom && begin_ > 0) {
    std::memmove(data(), data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (words_.size() * 8 - end_ < kRoom) words_.resize((end_ + kRoom + 7) / 8);
  return {reinterpret_cast<char*>(data()) + end_, words_.size() * 8 - end_};
}

FrameReader::Got FrameReader::next(bool greets, Frame& out) {
  FrameHead head;
  if (end_ - begin_ < sizeof head) return Got::nothing;
  std::memcpy(&head, data() + begin_, sizeof head);
  if (!is_allowed(head, greets)) return Got::bad;
  const std::size_t whole = sizeof head + padded(head.bytes);
  if (end_ - begin_ < whole) return Got::nothing;
  out = {head.kind, {data() + begin_ + sizeof head, head.bytes}};
  begin_ += whole;
  return Got::frame;
}

}  // namespace troupe::remote
