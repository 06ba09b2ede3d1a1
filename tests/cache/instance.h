#pragma once
// A cache manager and the memory of its worker, for tests of several instances.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "cache/sent_commands.h"

namespace troupe::test {

using Contents = std::vector<std::uint64_t>;

/// A cache manager, and of its worker's memory what each block holds.
struct Instance {
  static RequestKey key(std::uint64_t n) { return {1, n}; }

  void start(std::int32_t blocks, std::uint64_t life) {
    memory.assign(static_cast<std::size_t>(blocks), 0);
    commands.clear();
    cache.reset(++epoch, blocks, 64, {}, life);
  }
  void answer(const CacheAsks& asks) { answer_asks(cache, asks, grants, commands); }
  CacheAsks asks(const Contents& contents = {}) const {
    CacheAsks made;
    made.epoch = epoch;
    for (const std::uint64_t c : contents) made.hashes.push_back({2, c});
    return made;
  }
  Grant admit(std::uint64_t k, const Contents& contents, std::int32_t more = 0) {
    CacheAsks made = asks(contents);
    const auto count = static_cast<std::int32_t>(contents.size());
    made.grows = {{key(k), count + more, 0, {0, count}}};
    answer(made);
    return grants.grants.at(0);
  }
  /// A step writes the blocks behind the first `cached`, and comes back.
  void compute(std::uint64_t k, const Contents& contents, std::int32_t cached) {
    const auto blocks = cache.table(key(k));
    for (auto i = static_cast<std::size_t>(cached); i < contents.size(); ++i)
      memory[static_cast<std::size_t>(blocks[i])] = contents[i];
    CacheAsks made = asks(contents);
    made.publishes = {{key(k), 0, {0, static_cast<std::int32_t>(contents.size())}}};
    answer(made);
  }
  void release(std::uint64_t k) {
    CacheAsks made = asks();
    made.releases = {key(k)};
    answer(made);
  }
  /// A sequence with these contents that ends at once.
  void leave(std::uint64_t k, const Contents& contents) {
    compute(k, contents, admit(k, contents).cached);
    release(k);
  }
  /// The worker ends the oldest command.
  void end(bool ok = true) {
    const wire::CacheDone record = command_done(epoch, commands.front().header.id, ok);
    commands.pop_front();
    ASSERT_TRUE(cache.done(record, update));
    ASSERT_TRUE(cache.sound());
  }
  /// The copies of its oldest command are made as the memory of `from` is now.
  void copy(const Instance& from) {
    for (const wire::BlockCopy& one : commands.front().copies)
      memory[static_cast<std::size_t>(one.to)] = from.memory[static_cast<std::size_t>(one.from)];
  }
  Contents held(std::uint64_t k) const {
    Contents out;
    for (const BlockId block : cache.table(key(k))) out.push_back(memory[static_cast<std::size_t>(block)]);
    return out;
  }
  std::vector<BlockId> table(std::uint64_t k) const {
    return {cache.table(key(k)).begin(), cache.table(key(k)).end()};
  }

  CacheManager cache;
  CacheGrants grants, update;
  std::deque<SentCommand> commands;
  std::uint32_t epoch = 0;
  Contents memory;
};

inline std::shared_ptr<ipc::BlockNames> make_table(const ipc::NamesKey& key = {1, 2}) {
  auto fd = ipc::BlockNames::create(1000, key);
  auto attached = ipc::BlockNames::attach(fd->get());
  return std::make_shared<ipc::BlockNames>(*std::move(attached));
}

}  // namespace troupe::test
