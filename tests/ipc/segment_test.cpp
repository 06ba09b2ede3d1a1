#include "ipc/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/wire.h"

namespace troupe::ipc {
namespace {

Fd made() {
  auto fd = Segment::create(SegmentKind::step, 4096, 8192);
  EXPECT_TRUE(fd.ok()) << fd.status().message;
  return std::move(*fd);
}

TEST(Segment, CanBeMappedTwiceAtOnce) {
  const Fd fd = made();
  auto one = Segment::attach(fd.get(), SegmentKind::step);
  auto two = Segment::attach(fd.get(), SegmentKind::step);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(&one->header(), &two->header());
  EXPECT_EQ(one->header().epoch.load(), 1u);
  one->header().epoch.store(9);
  EXPECT_EQ(two->header().epoch.load(), 9u);
  EXPECT_EQ(one->down().capacity, 4096u);
  EXPECT_EQ(one->up().capacity, 8192u);
  EXPECT_EQ(one->up().data, one->down().data + 4096);
  one->up().data[8191] = std::byte{1};
  EXPECT_EQ(two->up().data[8191], std::byte{1});
}

TEST(Segment, LivesOnAfterItsDescriptorIsClosed) {
  Fd fd = made();
  auto segment = Segment::attach(fd.get(), SegmentKind::step);
  ASSERT_TRUE(segment.ok());
  fd.reset();
  segment->down().data[0] = std::byte{1};
  EXPECT_EQ(segment->header().magic, kSegmentMagic);
}

TEST(Segment, CannotBeResizedOrUnsealed) {
  const Fd fd = made();
  EXPECT_EQ(ftruncate(fd.get(), 4096), -1);
  EXPECT_EQ(ftruncate(fd.get(), 1 << 20), -1);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(Segment, InvalidRingSizesAreRefused) {
  for (const std::uint32_t size : {0u, 2048u, 5000u, (1u << 30) + 1, 1u << 31}) {
    EXPECT_EQ(Segment::create(SegmentKind::step, size, 4096).status().code, Code::invalid_argument) << size;
    EXPECT_EQ(Segment::create(SegmentKind::step, 4096, size).status().code, Code::invalid_argument) << size;
  }
}

TEST(Segment, DescriptorsOfOtherThingsAreErrors) {
  EXPECT_FALSE(Segment::attach(-1, SegmentKind::step).ok());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  EXPECT_FALSE(Segment::attach(pipe_fds[0], SegmentKind::step).ok());
  close(pipe_fds[0]);
  close(pipe_fds[1]);

  const Fd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  EXPECT_NE(Segment::attach(unsealed.get(), SegmentKind::step).status().message.find("sealed"),
            std::string::npos);
  for (const off_t size : {off_t{0}, off_t{100}, off_t{kSegmentHeaderBytes}, off_t{1} << 20}) {
    const Fd blank(memfd_create("blank", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(blank.get(), size), 0);
    ASSERT_EQ(fcntl(blank.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    EXPECT_EQ(Segment::attach(blank.get(), SegmentKind::step).status().code, Code::invalid_argument) << size;
  }
}

// Damages each header field that attach() relies on, one at a time.
TEST(Segment, DamagedHeadersAreErrors) {
  const auto attach_after = [](auto spoil) {
    const Fd fd = made();
    auto segment = Segment::attach(fd.get(), SegmentKind::step);
    EXPECT_TRUE(segment.ok());
    spoil(segment->header());
    return Segment::attach(fd.get(), SegmentKind::step).status().message;
  };
  EXPECT_EQ(attach_after([](SegmentHeader&) {}), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.magic ^= 1; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.version += 1; }).find("wire version"), std::string::npos);
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.kind = SegmentKind::cache; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.bytes += 8; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.header_bytes = 0; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.down_bytes = 1u << 30; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.up_bytes = 12288; }), "");
  EXPECT_NE(attach_after([](SegmentHeader& h) { h.down_bytes = h.up_bytes = 0; }), "");
  const Fd fd = made();
  EXPECT_FALSE(Segment::attach(fd.get(), SegmentKind::cache).ok());
}

}  // namespace
}  // namespace troupe::ipc
