#include "actors/worker/block_giver.h"

#include <pthread.h>

#include <array>
#include <utility>

namespace troupe {
namespace {

/// How soon it sees that it is to end.
constexpr Duration kGiverStopLook = std::chrono::milliseconds(100);

}  // namespace

BlockGiver::BlockGiver(ipc::BlockFetches asked, std::uint64_t life, ReadBlock read)
    : asked_(std::move(asked)), life_(life), read_(std::move(read)) {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "kv_give");
    run(stop);
  });
}

BlockGiver::~BlockGiver() = default;

void BlockGiver::run(const std::stop_token& stop) {
  std::array<std::uint64_t, ipc::BlockFetches::kMostSlots> seen{};
  asked_.set_connected(true);
  while (!stop.stop_requested()) {
    const auto want = asked_.next_want(seen, Clock::now() + kGiverStopLook);
    if (!want) continue;
    const std::span<std::byte> room = asked_.room(want->slot, asked_.block_bytes());
    asked_.answer(*want, want->memory == life_ && !room.empty() && read_(want->block, room));
  }
  asked_.set_connected(false);
}

}  // namespace troupe
