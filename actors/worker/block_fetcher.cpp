#include "actors/worker/block_fetcher.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace troupe {
namespace {

/// For one block. A relay that lives answers within 3 s, but may itself stand still.
constexpr Duration kFetchPatience = std::chrono::seconds(5);
constexpr Duration kFetchStopLook = std::chrono::milliseconds(20);

bool block_has_come(ipc::BlockFetches& fetches, std::size_t slot, const std::atomic<bool>& stop) {
  const TimePoint end = Clock::now() + kFetchPatience;
  while (!stop && Clock::now() < end) {
    if (const auto known = fetches.await(slot, std::min(end, Clock::now() + kFetchStopLook))) return *known;
  }
  return false;
}

}  // namespace

FetchBlocks fetch_through(ipc::BlockFetches own) {
  const auto fetches = std::make_shared<ipc::BlockFetches>(std::move(own));
  return [fetches](std::uint64_t life, std::span<const wire::BlockCopy> copies, const auto& take,
                   const std::atomic<bool>& stop) {
    const std::size_t slots = fetches->slots(fetches->block_bytes());
    std::size_t wanted = 0, taken = 0;
    bool whole = slots > 0;
    for (; whole && taken < copies.size(); ++taken) {
      for (; wanted < copies.size() && wanted < taken + slots; ++wanted)
        fetches->want(wanted % slots, life, copies[wanted].from);
      const std::size_t slot = taken % slots;
      whole = block_has_come(*fetches, slot, stop);
      if (whole) take(copies[taken], fetches->contents(slot));
      fetches->give_back(slot);
    }
    for (; taken < wanted; ++taken) fetches->give_back(taken % slots);
    return whole;
  };
}

}  // namespace troupe
