#include "ipc/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace troupe::ipc {
namespace {

using Bytes = std::vector<std::byte>;

// A ring in private memory, with guard bytes behind the data that must not change.
class RingTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kCapacity = 4096;
  static constexpr std::byte kGuard{0xA5};

  RingTest() : data_(kCapacity + 256, kGuard) { memory_ = {&control_, data_.data(), kCapacity}; }
  ~RingTest() override {
    for (std::size_t i = kCapacity; i < data_.size(); ++i) EXPECT_EQ(data_[i], kGuard);
  }

  static Bytes record(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed * 31 + i * 7);
    return bytes;
  }

  void write_word(std::uint32_t at, std::uint32_t bytes, std::uint32_t mark) {
    const ring_detail::Frame frame{bytes, mark};
    std::memcpy(data_.data() + at, &frame, sizeof frame);
  }

  RingControl control_;
  alignas(8) std::vector<std::byte> data_;
  RingMemory memory_;
};

Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

TEST_F(RingTest, EmptyThenOneRecordThenEmpty) {
  RingProducer producer(memory_);
  RingConsumer consumer(memory_);
  std::span<const std::byte> seen;
  EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::empty);
  EXPECT_FALSE(consumer.ready());
  ASSERT_TRUE(producer.try_push(record(13, 1)));
  EXPECT_TRUE(consumer.ready());
  ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
  EXPECT_EQ(copy(seen), record(13, 1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(seen.data()) % 8, 0u);
  EXPECT_EQ(ring_depth(memory_).records, 1u);
  EXPECT_EQ(ring_depth(memory_).bytes, 24u);  // frame 8, payload 13 rounded to 16
  consumer.pop();
  EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::empty);
  EXPECT_EQ(ring_depth(memory_).records, 0u);
}

TEST_F(RingTest, AFullRingRefusesRecordsUntilRoomIsFreed) {
  RingProducer producer(memory_);
  RingConsumer consumer(memory_);
  int pushed = 0;
  while (producer.try_push(record(56, pushed))) ++pushed;
  EXPECT_EQ(pushed, 64);  // 4096 / (8 + 56)
  EXPECT_EQ(ring_depth(memory_).bytes, kCapacity);
  std::span<const std::byte> seen;
  ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
  EXPECT_FALSE(producer.try_push(record(56, 99)));
  consumer.pop();
  EXPECT_TRUE(producer.try_push(record(56, 99)));
  EXPECT_FALSE(producer.try_push(record(1, 0)));
}

TEST_F(RingTest, LargestRecordFitsAtEveryOffset) {
  for (std::uint32_t offset = 0; offset < kCapacity; offset += 16) {
    control_.tail.store(0);
    control_.head.store(0);
    RingProducer producer(memory_);
    RingConsumer consumer(memory_);
    std::span<const std::byte> seen;
    for (std::uint32_t at = 0; at < offset; at += 16) {
      ASSERT_TRUE(producer.try_push(record(8, at)));
      ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
      consumer.pop();
    }
    ASSERT_TRUE(producer.try_push(record(memory_.max_record(), offset))) << offset;
    ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
    EXPECT_EQ(copy(seen), record(memory_.max_record(), offset));
    consumer.pop();
    EXPECT_EQ(ring_depth(memory_).bytes, 0u);
  }
}

TEST_F(RingTest, CursorsWrapAround) {
  // Both counters of a cursor start a little below 2^32.
  const std::uint64_t late = ring_detail::Cursor{0xfffffff8u & ~(kCapacity / 8 - 1), 0xfffffffeu}.word();
  control_.tail.store(late);
  control_.head.store(late);
  RingProducer producer(memory_);
  RingConsumer consumer(memory_);
  std::span<const std::byte> seen;
  for (unsigned i = 0; i < 1000; ++i) {
    ASSERT_TRUE(producer.try_push(record(100, i)));
    ASSERT_TRUE(producer.try_push(record(37, i)));
    EXPECT_EQ(ring_depth(memory_).records, 2u);
    ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
    ASSERT_EQ(copy(seen), record(100, i));
    consumer.pop();
    ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
    ASSERT_EQ(copy(seen), record(37, i));
    consumer.pop();
  }
  EXPECT_LT(control_.tail.load() >> 32, 5000u);  // the record count has wrapped
}

// Compared with a std::deque: 10^6 random operations; both ends are replaced by new objects at random times.
TEST_F(RingTest, BehavesLikeAQueue) {
  std::mt19937 random(7);
  auto producer = std::make_unique<RingProducer>(memory_);
  auto consumer = std::make_unique<RingConsumer>(memory_);
  std::deque<Bytes> model;
  std::size_t bytes_at_most = 0;
  for (int step = 0; step < 1'000'000; ++step) {
    const unsigned dice = random() % 1000;
    if (dice < 500) {
      const std::size_t size = 1 + (dice < 450 ? random() % 120 : random() % memory_.max_record());
      Bytes bytes(size, static_cast<std::byte>(random()));
      if (producer->try_push(bytes)) {
        model.push_back(std::move(bytes));
      } else {
        // Refused only if the free bytes may not suffice for the record, its frame, and padding that is
        // smaller than both together.
        const std::size_t need = 8 + (size + 7) / 8 * 8;
        ASSERT_GT(ring_depth(memory_).bytes + 2 * need, kCapacity);
      }
    } else if (dice < 996) {
      std::span<const std::byte> seen;
      const auto peek = consumer->peek(seen);
      ASSERT_EQ(peek, model.empty() ? RingConsumer::Peek::empty : RingConsumer::Peek::record);
      if (!model.empty()) {
        ASSERT_TRUE(std::equal(seen.begin(), seen.end(), model.front().begin(), model.front().end()));
        consumer->pop();
        model.pop_front();
      }
    } else if (dice < 998) {
      producer = std::make_unique<RingProducer>(memory_);
    } else {
      consumer = std::make_unique<RingConsumer>(memory_);  // perhaps with a record peeked, not popped
    }
    const RingDepth depth = ring_depth(memory_);
    ASSERT_EQ(depth.records, model.size());
    ASSERT_LE(depth.bytes, kCapacity);
    bytes_at_most = std::max<std::size_t>(bytes_at_most, depth.bytes);
  }
  EXPECT_GT(bytes_at_most, kCapacity * 9 / 10);  // the ring was nearly full at least once
}

TEST_F(RingTest, ARecordIsInvisibleIfItsProducerIsKilledBeforePublishing) {
  RingConsumer consumer(memory_);
  { RingProducer(memory_).try_push(record(40, 1)); }
  const std::uint64_t before = control_.tail.load();
  { RingProducer(memory_).try_push(record(40, 2)); }
  control_.tail.store(before);  // as if killed right before the store
  RingProducer successor(memory_);
  ASSERT_TRUE(successor.try_push(record(24, 3)));
  std::span<const std::byte> seen;
  ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
  EXPECT_EQ(copy(seen), record(40, 1));
  consumer.pop();
  ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record);
  EXPECT_EQ(copy(seen), record(24, 3));
}

TEST_F(RingTest, ARecordIsSeenAgainIfItsConsumerIsKilledBeforeReleasing) {
  RingProducer producer(memory_);
  ASSERT_TRUE(producer.try_push(record(40, 1)));
  std::span<const std::byte> seen;
  {
    RingConsumer killed(memory_);
    ASSERT_EQ(killed.peek(seen), RingConsumer::Peek::record);
  }
  RingConsumer successor(memory_);
  ASSERT_EQ(successor.peek(seen), RingConsumer::Peek::record);
  EXPECT_EQ(copy(seen), record(40, 1));
}

// Each kind of damage is written behind a published record of 40 bytes at offset 0.
TEST_F(RingTest, DamagedFramesAreReported) {
  struct Damage {
    const char* what;
    std::uint32_t bytes, mark;
  };
  for (const Damage& damage :
       {Damage{"no bytes", 0, ring_detail::kRecordMark},
        Damage{"longer than published", 48, ring_detail::kRecordMark},
        Damage{"longer than the ring", 1u << 20, ring_detail::kRecordMark},
        Damage{"length wraps", 0xffffffffu, ring_detail::kRecordMark}, Damage{"unknown mark", 40, 0x12345678},
        Damage{"padding at the start", kCapacity - 8, ring_detail::kPaddingMark}}) {
    control_.tail.store(0);
    control_.head.store(0);
    RingProducer producer(memory_);
    RingConsumer consumer(memory_);
    ASSERT_TRUE(producer.try_push(record(40, 1)));
    write_word(0, damage.bytes, damage.mark);
    std::span<const std::byte> seen;
    EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::corrupt) << damage.what;
    EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::corrupt) << damage.what;
    consumer.resync();
    EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::empty) << damage.what;
    ASSERT_TRUE(producer.try_push(record(16, 2)));
    ASSERT_EQ(consumer.peek(seen), RingConsumer::Peek::record) << damage.what;
    EXPECT_EQ(copy(seen), record(16, 2));
  }
}

TEST_F(RingTest, DamagedCursorsAreReportedAndResetByTheNextProcess) {
  for (const std::uint64_t tail : std::initializer_list<std::uint64_t>{
           ~0ull, 1ull, 1ull << 32, ring_detail::Cursor{513, 4}.word(), ring_detail::Cursor{4, 400}.word(),
           ring_detail::Cursor{0xfffffff0u, 1}.word()}) {
    control_.tail.store(0);
    control_.head.store(0);
    RingConsumer consumer(memory_);
    control_.tail.store(tail);
    std::span<const std::byte> seen;
    EXPECT_EQ(consumer.peek(seen), RingConsumer::Peek::corrupt) << tail;
    EXPECT_EQ(ring_depth(memory_).records, 0u);
    RingProducer producer(memory_);  // resets the cursors
    RingConsumer next(memory_);
    ASSERT_TRUE(producer.try_push(record(16, 2)));
    ASSERT_EQ(next.peek(seen), RingConsumer::Peek::record) << tail;
    EXPECT_EQ(copy(seen), record(16, 2));
  }
}

TEST_F(RingTest, ImpossibleHeadCountsAsFull) {
  RingProducer producer(memory_);
  while (producer.try_push(record(56, 1))) {
  }
  control_.head.store(ring_detail::Cursor{100000, 7}.word());
  EXPECT_FALSE(producer.try_push(record(56, 1)));
}

// Random bytes everywhere: any result is allowed except an access outside the data, which ASan and the guard
// bytes detect.
TEST_F(RingTest, RandomMemoryNeverCausesReadsOutsideTheRing) {
  std::mt19937_64 random(11);
  std::span<const std::byte> seen;
  int records = 0, corrupt = 0;
  for (int round = 0; round < 50'000; ++round) {
    control_.head.store(ring_detail::Cursor{static_cast<std::uint32_t>(random()), 0}.word());
    const auto head = ring_detail::Cursor::of(control_.head.load());
    const std::uint32_t used = random() % (kCapacity / 8 + 2);
    control_.tail.store(ring_detail::Cursor{head.units + used, used / 2}.word());
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t marks[] = {ring_detail::kRecordMark, ring_detail::kPaddingMark};
      write_word((i == 0 ? head.units % (kCapacity / 8) : random() % (kCapacity / 8)) * 8,
                 static_cast<std::uint32_t>(random() % (2 * kCapacity)), marks[random() % 2]);
    }
    RingConsumer consumer(memory_);
    RingConsumer::Peek peek;
    while ((peek = consumer.peek(seen)) == RingConsumer::Peek::record) {
      ASSERT_GE(seen.data(), data_.data());
      ASSERT_LE(seen.data() + seen.size(), data_.data() + kCapacity);
      consumer.pop();
      ++records;
    }
    corrupt += peek == RingConsumer::Peek::corrupt;
  }
  EXPECT_GT(records, 1000);
  EXPECT_GT(corrupt, 1000);
}

TEST_F(RingTest, TwoThreadsKeepOrderAndContent) {
  constexpr std::uint32_t kRecords = 300'000;
  std::jthread writer([this] {
    RingProducer producer(memory_);
    std::uint32_t words[32];
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      const std::size_t count = 1 + i % 32;
      for (std::size_t k = 0; k < count; ++k) words[k] = i * 2654435761u + static_cast<std::uint32_t>(k);
      while (!producer.try_push(std::as_bytes(std::span(words, count)))) std::this_thread::yield();
    }
  });
  RingConsumer consumer(memory_);
  std::span<const std::byte> seen;
  for (std::uint32_t i = 0; i < kRecords;) {
    const auto peek = consumer.peek(seen);
    ASSERT_NE(peek, RingConsumer::Peek::corrupt);
    if (peek == RingConsumer::Peek::empty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(seen.size(), (1 + i % 32) * 4);
    for (std::size_t k = 0; k < seen.size() / 4; ++k) {
      std::uint32_t word;
      std::memcpy(&word, seen.data() + 4 * k, 4);
      ASSERT_EQ(word, i * 2654435761u + k);
    }
    consumer.pop();
    ++i;
  }
}

TEST(RingDeathTest, RecordsOfImpossibleLengthAbort) {
  RingControl control;
  std::vector<std::byte> data(4096);
  RingProducer producer(RingMemory{&control, data.data(), 4096});
  EXPECT_DEATH(producer.try_push({}), "max_record");
  const Bytes too_long(4096 / 2);
  EXPECT_DEATH(producer.try_push(too_long), "max_record");
}

}  // namespace
}  // namespace troupe::ipc
