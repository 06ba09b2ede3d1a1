// The table of the names of KV blocks: what a reader sees of it, also after its writer was killed.
#include "ipc/block_names.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "ipc/segment.h"

namespace troupe::ipc {
namespace {

Fd table_of(std::uint64_t entries) {
  auto fd = BlockNames::create(entries);
  EXPECT_TRUE(fd.ok()) << fd.status().message;
  return std::move(*fd);
}

BlockNames attached(const Fd& fd, Access access = Access::write) {
  auto names = BlockNames::attach(fd.get(), access);
  EXPECT_TRUE(names.ok()) << names.status().message;
  return std::move(*names);
}

TEST(BlockNames, WhatOneProcessSetsTheNextReads) {
  const Fd fd = table_of(8);
  {
    BlockNames writer = attached(fd);
    writer.begin(77);
    writer.set(3, {{1, 2}, 5});
    writer.set(4, {{3, 4}, 6});
    writer.set(4, {{7, 8}, 9});
    writer.set(0, {{5, 6}, 0});
    writer.clear(0);
    writer.clear(0);
  }
  const BlockNames reader = attached(fd, Access::read);
  EXPECT_EQ(reader.memory(), 77u);
  EXPECT_EQ(reader.end(), 5);
  BlockName name;
  ASSERT_TRUE(reader.read(3, name));
  EXPECT_EQ(name, (BlockName{{1, 2}, 5}));
  ASSERT_TRUE(reader.read(4, name));
  EXPECT_EQ(name, (BlockName{{7, 8}, 9}));
  for (const BlockId block : {-1, 0, 1, 2, 5, 7, 8, 1000}) EXPECT_FALSE(reader.read(block, name)) << block;
}

TEST(BlockNames, ANewMemoryHasNoNames) {
  const Fd fd = table_of(8);
  BlockNames names = attached(fd);
  EXPECT_EQ(names.memory(), 0u);
  names.begin(1);
  names.set(6, {{1, 2}, 0});
  names.begin(2);
  EXPECT_EQ(names.memory(), 2u);
  EXPECT_EQ(names.end(), 0);
  names.set(7, {{1, 2}, 0});
  BlockName name;
  EXPECT_FALSE(names.read(6, name)) << "cleared, and not only out of sight";
}

TEST(BlockNames, ATableThatIsDistrustedIsAboutNoMemory) {
  const Fd fd = table_of(8);
  BlockNames names = attached(fd);
  names.begin(5);
  names.set(1, {{1, 2}, 0});
  names.distrust();
  EXPECT_EQ(attached(fd).memory(), 0u);
}

TEST(BlockNames, BlocksBehindTheLastEntryHaveNoNames) {
  BlockNames names = attached(table_of(2));
  names.begin(1);
  for (BlockId block = 0; block < 5; ++block) names.set(block, {{1, 1}, block});
  BlockName name;
  EXPECT_TRUE(names.read(1, name));
  EXPECT_FALSE(names.read(2, name));
  EXPECT_EQ(names.end(), 2);
  names.clear(4);
}

TEST(BlockNames, EachTableHasAKeyOfItsOwn) {
  const Fd one = table_of(1), two = table_of(1);
  const NamesKey first = attached(one).key(), again = attached(one).key(), other = attached(two).key();
  EXPECT_TRUE(first.low == again.low && first.high == again.high);
  EXPECT_TRUE(first.low != other.low && first.high != other.high);
  EXPECT_TRUE(first.low != 0 && first.high != 0);
}

TEST(BlockNames, TakesMemoryForTheBlocksInUseOnly) {
  const Fd fd = table_of(BlockNames::kMostBlocks);
  BlockNames names = attached(fd);
  names.begin(1);
  for (BlockId block = 0; block < 1000; ++block) names.set(block, {{1, 1}, 0});
  names.begin(2);
  struct stat st {};
  ASSERT_EQ(fstat(fd.get(), &st), 0);
  EXPECT_GT(st.st_size, 100 << 20);
  EXPECT_LE(st.st_blocks * 512, 64 << 10);
}

TEST(BlockNames, OtherThingsAreNoTable) {
  EXPECT_EQ(BlockNames::create(0).status().code, Code::invalid_argument);
  EXPECT_EQ(BlockNames::create(std::uint64_t{1} << 31).status().code, Code::invalid_argument);
  EXPECT_FALSE(BlockNames::attach(-1).ok());
  const auto rings = Segment::create(SegmentKind::step, 4096, 4096);
  EXPECT_EQ(BlockNames::attach(rings->get()).status().code, Code::invalid_argument);
  EXPECT_FALSE(Segment::attach(table_of(8).get(), SegmentKind::step).ok());
  const Fd unsealed(memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(BlockNames::attach(unsealed.get()).status().message,
            "not a shared segment of this program: its size is not sealed");

  const auto damaged = [](auto damage) {
    const Fd fd = table_of(8);
    void* at = ::mmap(nullptr, kBlockNamesHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    damage(*static_cast<BlockNamesHeader*>(at));
    ::munmap(at, kBlockNamesHeaderBytes);
    return BlockNames::attach(fd.get()).ok();
  };
  EXPECT_TRUE(damaged([](BlockNamesHeader&) {}));
  EXPECT_FALSE(damaged([](BlockNamesHeader& h) { ++h.magic; }));
  EXPECT_FALSE(damaged([](BlockNamesHeader& h) { ++h.version; }));
  EXPECT_FALSE(damaged([](BlockNamesHeader& h) { h.entry_bytes = 16; }));
  EXPECT_FALSE(damaged([](BlockNamesHeader& h) { h.entries = 9; }));
  EXPECT_FALSE(damaged([](BlockNamesHeader& h) { h.entries = 0; }));
  EXPECT_TRUE(damaged([](BlockNamesHeader& h) { h.used = 1000; })) << "not trusted: reads stay inside";
}

// What the writer below does with a block: it clears the entry, writes the block, and sets the entry.
constexpr int kBlocks = 8;
struct Contents {
  std::array<std::atomic<std::uint64_t>, 8> words[kBlocks];
};
BlockName name_of(std::uint64_t number) {
  return {{number * 0x9e3779b97f4a7c15ull | 1, number}, static_cast<std::int32_t>(number % 1000)};
}
bool whole(const BlockName& name) { return name == name_of(name.hash.lo); }

[[noreturn]] void write_for_ever(BlockNames& names, Contents& contents, std::uint64_t number) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;; ++number) {
    const auto block = static_cast<BlockId>((number * 2654435761u >> 7) % kBlocks);
    names.clear(block);
    for (auto& word : contents.words[block]) word.store(number, std::memory_order_relaxed);
    if (number % 3 != 0) names.set(block, name_of(number));
    if (number % 1000 == 0) names.begin(number);
  }
}

TEST(BlockNames, AKilledWriterLeavesEntriesThatAreWholeAndTrueOrAbsent) {
  const Fd fd = table_of(kBlocks);
  BlockNames names = attached(fd);
  names.begin(1);
  void* memory = ::mmap(nullptr, sizeof(Contents), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& contents = *new (memory) Contents;
  std::mt19937 random(7);
  std::uint64_t seen = 0, seen_alive = 0;
  BlockName name;
  for (int life = 0; life < 400; ++life) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) write_for_ever(names, contents, 1 + static_cast<std::uint64_t>(life) * 1'000'000'000);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(300 + random() % 2000);
    bool torn = false;
    while (std::chrono::steady_clock::now() < until) {
      for (BlockId block = 0; block < kBlocks; ++block) {
        if (!names.read(block, name)) continue;
        ++seen_alive;
        torn |= !whole(name);
      }
    }
    ::kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_FALSE(torn) << "read while it was written";
    for (BlockId block = 0; block < kBlocks; ++block) {
      if (!names.read(block, name)) continue;
      ++seen;
      ASSERT_TRUE(whole(name)) << "life " << life;
      for (const auto& word : contents.words[block]) ASSERT_EQ(word.load(), name.hash.lo) << "life " << life;
    }
  }
  EXPECT_GT(seen, 400u);
  EXPECT_GT(seen_alive, 400u);
  ::munmap(memory, sizeof(Contents));
}

}  // namespace
}  // namespace troupe::ipc
