// Two processes over one link, and the state of the ring after one of them is killed at a random instruction.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <new>
#include <random>

#include "ipc/link.h"
#include "support/patience.h"

namespace troupe::ipc {
namespace {

using namespace std::chrono_literals;

// A record of 16 … 1024 bytes in which every word is computed from its number, so that a torn one is
// detected.
struct Numbered {
  std::array<std::uint64_t, 128> words;

  std::span<const std::byte> make(std::uint64_t number) {
    const std::size_t count = 2 + number * 2654435761u % 126;
    for (std::size_t i = 0; i < count; ++i) words[i] = number * 0x9e3779b97f4a7c15ull + i;
    words[0] = number;
    return std::as_bytes(std::span(words.data(), count));
  }
  static bool intact(std::span<const std::byte> bytes) {
    std::uint64_t number;
    std::memcpy(&number, bytes.data(), 8);
    Numbered expected;
    const auto want = expected.make(number);
    return bytes.size() == want.size() && std::memcmp(bytes.data(), want.data(), want.size()) == 0;
  }
  static std::uint64_t number(std::span<const std::byte> bytes) {
    std::uint64_t n;
    std::memcpy(&n, bytes.data(), 8);
    return n;
  }
};

template <class Body>
pid_t child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body() ? 0 : 1);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

RingMemory ring_of(const Segment& segment) { return segment.down(); }

TEST(TwoProcesses, MillionsOfRecordsArriveInOrder) {
  auto fd = Segment::create(SegmentKind::step, 1 << 16, 4096);
  ASSERT_TRUE(fd.ok());
  auto segment = Segment::attach(fd->get(), SegmentKind::step);
  ASSERT_TRUE(segment.ok());
  constexpr std::uint64_t kRecords = 2'000'000;
  Doorbell* bells = segment->header().doorbells;  // [0] tells the writer of room, [1] the reader of records
  const pid_t writer = child([&] {
    RingProducer producer(ring_of(*segment));
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      std::uint64_t words[8] = {i, ~i, i * 3, 0, 0, 0, 0, i ^ 0x5555};
      const auto record = std::as_bytes(std::span(words, 2 + i % 7));
      bool sent = false;
      if (!bells[0].wait(Clock::now() + test::kPatience, 1us,
                         [&] { return sent = sent || producer.try_push(record); })) {
        return false;
      }
      bells[1].ring();
    }
    return true;
  });
  RingConsumer consumer(ring_of(*segment));
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(bells[1].wait(Clock::now() + test::kPatience, 1us, [&] { return consumer.ready(); })) << i;
    std::span<const std::byte> seen;
    ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
    std::uint64_t words[2];
    std::memcpy(words, seen.data(), 16);
    ASSERT_EQ(words[0], i);
    ASSERT_EQ(words[1], ~i);
    ASSERT_EQ(seen.size(), 8 * (2 + i % 7));
    consumer.pop();
    bells[0].ring();
  }
  EXPECT_EQ(wait_for(writer), 0);
}

class Kills : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fd = Segment::create(SegmentKind::step, 1 << 14, 4096);
    ASSERT_TRUE(fd.ok());
    auto segment = Segment::attach(fd->get(), SegmentKind::step);
    ASSERT_TRUE(segment.ok());
    segment_.emplace(std::move(*segment));
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    pushed_ = new (memory) std::atomic<std::uint64_t>(0);
  }
  void TearDown() override { munmap(pushed_, 4096); }

  Duration moment() { return std::chrono::microseconds(random_() % 3000); }

  std::optional<Segment> segment_;
  // First number that may not be published yet. In memory shared with the children.
  std::atomic<std::uint64_t>* pushed_ = nullptr;
  std::mt19937 random_{3};
};

// One reader and 150 writers that are killed. Numbers arrive in order without a gap. Each new writer begins
// at the first number that may not be published, so the number being published at the kill may arrive twice.
TEST_F(Kills, WriterAtAnyInstruction) {
  RingConsumer consumer(ring_of(*segment_));
  std::uint64_t next = 0;
  std::uint64_t received = 0;
  for (int kill_number = 0; kill_number < 150; ++kill_number) {
    const pid_t writer = child([&] {
      RingProducer producer(ring_of(*segment_));
      Numbered record;
      for (std::uint64_t i = pushed_->load();; ++i) {
        const auto bytes = record.make(i);
        while (!producer.try_push(bytes)) {
        }
        pushed_->store(i + 1);
      }
      return true;
    });
    const TimePoint end = Clock::now() + 1ms + moment();
    bool killed = false;
    for (;;) {
      std::span<const std::byte> seen;
      const auto peek = consumer.peek(seen);
      ASSERT_NE(peek, RingConsumer::Peek::corrupt) << "kill " << kill_number;
      if (peek == RingConsumer::Peek::record) {
        ASSERT_TRUE(Numbered::intact(seen));
        const std::uint64_t number = Numbered::number(seen);
        ASSERT_TRUE(number == next || number + 1 == next) << number << " after " << next;
        next = number + 1;
        consumer.pop();
        ++received;
      } else if (killed) {
        break;
      }
      if (!killed && Clock::now() >= end) {
        kill(writer, SIGKILL);
        wait_for(writer);
        killed = true;
      }
    }
    ASSERT_EQ(ring_depth(ring_of(*segment_)).records, 0u);
    ASSERT_GE(next, pushed_->load());
    ASSERT_LE(next, pushed_->load() + 1);
  }
  EXPECT_GT(received, 500u);
}

// One writer and 150 readers that are killed. Each new reader continues at the ring's own cursor, so the
// record being released at the kill may be seen twice; no record is skipped.
TEST_F(Kills, ReaderAtAnyInstruction) {
  auto* seen_by_readers = pushed_;  // first number that may not be released yet
  RingProducer producer(ring_of(*segment_));
  Numbered record;
  std::uint64_t next = 0;
  for (int kill_number = 0; kill_number < 150; ++kill_number) {
    const pid_t reader = child([&] {
      RingConsumer consumer(ring_of(*segment_));
      for (;;) {
        std::span<const std::byte> bytes;
        const auto peek = consumer.peek(bytes);
        if (peek == RingConsumer::Peek::corrupt) return false;
        if (peek == RingConsumer::Peek::empty) continue;
        const std::uint64_t want = seen_by_readers->load();
        const std::uint64_t number = Numbered::number(bytes);
        if (!Numbered::intact(bytes) || (number != want && number + 1 != want)) return false;
        seen_by_readers->store(number + 1);
        consumer.pop();
      }
    });
    const TimePoint end = Clock::now() + 1ms + moment();
    while (Clock::now() < end) {
      if (producer.try_push(record.make(next))) ++next;
    }
    kill(reader, SIGKILL);
    const int status = wait_for(reader);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "a reader found a wrong record";
  }
  EXPECT_GT(seen_by_readers->load(), 500u);
  // The records left in the ring are intact and complete.
  RingConsumer last(ring_of(*segment_));
  std::uint64_t expected = seen_by_readers->load();
  std::span<const std::byte> bytes;
  while (last.peek(bytes) == RingConsumer::Peek::record) {
    ASSERT_TRUE(Numbered::intact(bytes));
    const std::uint64_t number = Numbered::number(bytes);
    ASSERT_TRUE(number == expected || number + 1 == expected);
    expected = number + 1;
    last.pop();
  }
  EXPECT_EQ(expected, next);
}

// Whole links: a worker that returns plans as results is killed 40 times while the engine's end waits in
// receive(). After each kill the next worker answers before the deadline.
TEST(LinkKills, TheEngineWorksWithEveryRestartedWorker) {
  auto fds = create_link({1 << 16, 1 << 16, 4096, 4096});
  ASSERT_TRUE(fds.ok());
  auto monitor = LinkMonitor::attach(fds->step.get(), fds->cache.get());
  auto attached = UpperEnd::attach(fds->step.get(), fds->cache.get());
  ASSERT_TRUE(monitor.ok() && attached.ok());
  UpperEnd& engine = *attached;
  std::mt19937 random(5);
  wire::RecordWriter<wire::StepPlan> writer;
  std::uint64_t answers = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t worker = child([&] {
      auto end = LowerEnd::attach(fds->step.get(), fds->cache.get());
      if (!end.ok()) return false;
      wire::RecordWriter<wire::StepResult> result;
      for (;;) {
        const Received got = end->receive(Clock::now() + test::kPatience);
        if (got.kind != Received::Kind::record) return false;
        result.begin(got.view.header().epoch);
        result.record().step = got.view.as<wire::StepPlan>()->step;
        if (!end->try_send(Channel::step, result.finish())) return false;
      }
    });
    const TimePoint end = Clock::now() + 3ms + std::chrono::microseconds(random() % 6000);
    std::uint64_t step = 0, answered = 0;
    while (Clock::now() < end || answered == 0) {
      if (step < answered + 2) {
        writer.begin(engine.epoch());
        writer.record().step = ++step;
        ASSERT_TRUE(engine.try_send(Channel::step, writer.finish()));
      }
      const Received got = engine.receive(Clock::now() + test::kPatience);
      ASSERT_EQ(got.kind, Received::Kind::record) << "round " << round;
      ASSERT_EQ(got.view.as<wire::StepResult>()->step, ++answered);
    }
    answers += answered;
    kill(worker, SIGKILL);
    wait_for(worker);
    monitor->reaped(Side::lower);
    ASSERT_EQ(engine.receive(Clock::now() + test::kPatience).kind, Received::Kind::epoch_changed);
  }
  EXPECT_EQ(engine.epoch(), 41u);
  EXPECT_GE(answers, 40u);
}

}  // namespace
}  // namespace troupe::ipc
