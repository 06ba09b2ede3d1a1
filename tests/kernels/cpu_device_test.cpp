// The CPU device without its ops: the thread pool, memory, detection of instruction sets.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>
#include "gpu/buffer.h"
#include "gpu/cpu.h"
#include "support/patience.h"

namespace troupe {
namespace {

TEST(ThreadPool, EveryIndexOnceInEveryRound) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads, {}, false);
    for (int round = 0; round < 3000; ++round) {
      const int count = round % 37;
      std::array<std::atomic<int>, 37> hits{};
      pool.for_each(count, 1 + round % 4, [&](int begin, int end, int lane) {
        EXPECT_GE(lane, 0);
        EXPECT_LT(lane, threads);
        for (int i = begin; i < end; ++i) hits[std::size_t(i)].fetch_add(1);
      });
      for (int i = 0; i < 37; ++i) ASSERT_EQ(hits[std::size_t(i)].load(), i < count ? 1 : 0) << round;
    }
  }
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  ThreadPool pool(3, {}, false);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // much longer than they spin
    std::atomic<int> sum{0};
    std::atomic<int> lanes{0};
    const auto end = std::chrono::steady_clock::now() + test::kPatience;
    pool.for_each(64, 1, [&](int begin, int, int lane) {
      lanes.fetch_or(1 << lane);
      sum.fetch_add(begin);
      while (lanes.load() == 1 << lane && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
    EXPECT_EQ(sum.load(), 64 * 63 / 2);
    ASSERT_NE(lanes.load(), 1) << "no other thread took part";
  }
}

TEST(ThreadPool, TellsOfEveryChunkThatTheCallerRuns) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads, {}, false);
    std::atomic<std::int64_t> word{7};
    pool.count_progress(&word);
    pool.for_each(1, 1, [&](int, int, int) { EXPECT_EQ(word, 7); });
    EXPECT_EQ(word, 8) << "one more after a loop of one chunk";
    int callers = 0;
    pool.for_each(64, 1, [&](int, int, int lane) {
      if (lane == 0) {
        EXPECT_EQ(word, 8 + callers++);
      }
    });
    EXPECT_GT(word, 8);
    pool.count_progress(nullptr);
    const std::int64_t before = word;
    pool.for_each(64, 1, [](int, int, int) {});
    EXPECT_EQ(word, before);
  }
}

TEST(ThreadPool, RestoresTheCallersAffinity) {
  cpu_set_t before, during, after;
  sched_getaffinity(0, sizeof before, &before);
  {
    Cpu device;
    sched_getaffinity(0, sizeof during, &during);
    EXPECT_EQ(CPU_COUNT(&during), 1);
    EXPECT_EQ(std::size_t(device.pool().threads()), [&] {
      std::size_t cores = 0;
      std::thread([&] {
        sched_setaffinity(0, sizeof before, &before);
        cores = physical_cores().size();
      }).join();
      return cores;
    }());
  }
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Cpu, MemoryIsZeroedAlignedAndReturned) {
  Cpu device({.threads = 1, .pin = false});
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{5} << 20}) {
    auto* memory = static_cast<unsigned char*>(device.alloc(bytes));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % (bytes > (2u << 20) ? 2u << 20 : 64u), 0u);
    for (std::size_t i = 0; i < bytes; i += 997) EXPECT_EQ(memory[i], 0);
    std::memset(memory, 1, bytes);
    device.free(memory);
  }
  device.free(nullptr);
  EXPECT_EQ(device.alloc(SIZE_MAX / 2), nullptr);
  const auto refused = Buffer<Cpu>::make(device, SIZE_MAX / 2, "KV memory");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code, Code::unavailable);
  EXPECT_NE(refused.status().message.find("KV memory"), std::string::npos);
}

TEST(Cpu, ScratchGrowsAndIsReused) {
  Cpu device({.threads = 2, .pin = false});
  void* large = device.scratch(100000);
  EXPECT_EQ(device.scratch(50), large);
  device.reserve_lanes(1000);
  EXPECT_NE(device.lane(0), device.lane(1));
  EXPECT_GE(device.scratch_bytes(), 102000u);
}

TEST(Arena, CountsBytesWithoutMemoryAndAllocatesWithIt) {
  Arena counting;
  EXPECT_EQ(counting.take<float>(3), nullptr);
  EXPECT_EQ(counting.take_bytes(65), nullptr);
  EXPECT_EQ(counting.used(), 64u + 128u);
  alignas(64) std::byte memory[192];
  Arena arena({memory, sizeof memory});
  EXPECT_EQ(static_cast<void*>(arena.take<float>(3)), memory);
  EXPECT_EQ(arena.take_bytes(65), memory + 64);
  arena.reset();
  EXPECT_EQ(static_cast<void*>(arena.take<char>(192)), memory);
}

TEST(Isa, NamesAndOrder) {
  EXPECT_STREQ(to_string(Isa::avx512_bf16), "avx512_bf16");
  EXPECT_EQ(usable_isas().front(), Isa::baseline);
  EXPECT_LT(cpu_features().best, Isa::amx) << "amx is for those who asked kernels::best_isa()";
  EXPECT_TRUE(usable(cpu_features().best));
  for (const Isa isa : usable_isas()) EXPECT_TRUE(isa <= cpu_features().best || isa == Isa::amx);
  EXPECT_FALSE(cpu_features().model.empty());
  EXPECT_EQ(Cpu({.threads = 2, .pin = false, .isa = Isa::baseline}).describe(), "cpu: baseline, 2 threads");
}

}  // namespace
}  // namespace troupe
