// Frames out of bytes in pieces of any length, and what is no frame.
#include "actors/remote/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

namespace troupe::remote {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

void feed(FrameReader& reader, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    ASSERT_GE(room.size(), std::size_t{16} << 10);
    const std::size_t n = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), n);
    reader.filled(n);
    bytes = bytes.subspan(n);
  }
}

FrameReader::Got next_of(std::span<const std::byte> bytes, bool greets) {
  FrameReader reader;
  feed(reader, bytes);
  Frame frame;
  return reader.next(greets, frame);
}

std::vector<std::byte> head(std::uint32_t bytes, FrameKind kind) {
  std::vector<std::byte> out(8);
  std::memcpy(out.data(), &bytes, 4);
  std::memcpy(out.data() + 4, &kind, 4);
  return out;
}

TEST(Frames, ComeWholeAndAlignedHoweverTheyAreCut) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::byte> wire;
  for (int i = 0; i < 200; ++i) {
    const std::size_t most = i % 20 == 0 ? wire::kMaxRecordBytes : 3000;
    sent.emplace_back(sizeof(wire::Message) + random() % (most - sizeof(wire::Message) + 1));
    std::memset(sent.back().data(), i, sent.back().size());
    put_frame(wire, FrameKind::record, sent.back());
  }
  FrameReader reader;
  std::size_t taken = 0, at = 0;
  while (at < wire.size()) {
    const auto room = reader.room();
    const std::size_t n = std::min({room.size(), wire.size() - at, std::size_t{1} + random() % 40000});
    std::memcpy(room.data(), wire.data() + at, n);
    reader.filled(n);
    at += n;
    Frame frame;
    while (reader.next(false, frame) == FrameReader::Got::frame) {
      ASSERT_LT(taken, sent.size());
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.payload.data()) % 8, 0u);
      ASSERT_TRUE(std::ranges::equal(frame.payload, sent[taken]));
      ++taken;
    }
  }
  EXPECT_EQ(taken, sent.size());
}

TEST(Frames, OfTheGreetingComeOnlyThenAndTheOthersOnlyLater) {
  for (const FrameKind kind : {FrameKind::greeting, FrameKind::welcome, FrameKind::refusal}) {
    std::vector<std::byte> wire;
    put_frame(wire, kind, bytes_of("{}"));
    EXPECT_EQ(next_of(wire, true), FrameReader::Got::frame);
    EXPECT_EQ(next_of(wire, false), FrameReader::Got::bad);
  }
  std::vector<std::byte> beat, draining;
  put_frame(beat, FrameKind::beat, std::vector<std::byte>(8));
  put_frame(draining, FrameKind::draining, {});
  for (const auto& wire : {beat, draining}) {
    EXPECT_EQ(next_of(wire, false), FrameReader::Got::frame);
    EXPECT_EQ(next_of(wire, true), FrameReader::Got::bad);
  }
}

TEST(Frames, OfAnotherLengthAreRefusedByTheirHeadAlone) {
  EXPECT_EQ(next_of(head(kMostGreetingBytes + 1, FrameKind::greeting), true), FrameReader::Got::bad);
  EXPECT_EQ(next_of(head(wire::kMaxRecordBytes + 1, FrameKind::record), false), FrameReader::Got::bad);
  EXPECT_EQ(next_of(head(sizeof(wire::Message) - 1, FrameKind::record), false), FrameReader::Got::bad);
  EXPECT_EQ(next_of(head(9, FrameKind::beat), false), FrameReader::Got::bad);
  EXPECT_EQ(next_of(head(1, FrameKind::draining), false), FrameReader::Got::bad);
  EXPECT_EQ(next_of(bytes_of("GET / HTTP/1.1\r\n"), true), FrameReader::Got::bad);
  EXPECT_EQ(next_of(head(wire::kMaxRecordBytes, FrameKind::record), false), FrameReader::Got::nothing);
}

}  // namespace
}  // namespace troupe::remote
