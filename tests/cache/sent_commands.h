#pragma once
// The commands of a CacheManager that its worker has not ended.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "actors/cache/cache_manager.h"

namespace troupe {

struct SentCommand {
  wire::CacheCommand header;
  std::vector<wire::BlockCopy> copies;
};

/// Lets the manager answer, and appends the commands of the answer.
inline void answer_asks(CacheManager& cache, const CacheAsks& asks, CacheGrants& grants,
                        std::deque<SentCommand>& commands) {
  cache.answer(asks, grants);
  for (std::size_t i = 0; i < cache.commands(); ++i) {
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(cache.command(i), view));
    const auto* command = view.as<wire::CacheCommand>();
    const auto copies = view.array(command->copies);
    commands.push_back({*command, {copies.begin(), copies.end()}});
  }
  ASSERT_TRUE(cache.sound());
}

/// The worker's report of a command that has taken so long.
inline wire::CacheDone command_done(std::uint32_t epoch, std::uint64_t id, bool ok, double seconds = 0) {
  wire::CacheDone record;
  record.header = {wire::RecordKind::cache_done, sizeof record, epoch, 0};
  record.id = id;
  record.failed = ok ? 0 : 1;
  record.finished_ns = static_cast<std::int64_t>(1e9 * seconds);
  return record;
}

}  // namespace troupe
