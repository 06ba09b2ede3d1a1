#include "model/ranks/collective.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "gpu/buffer.h"
#include "gpu/peer_memory.h"
#include "gpu/pinned.h"

namespace troupe::model {
namespace {

/// The ranks join when the first plan of an epoch has come to all of them.
constexpr Duration kJoinPatience = std::chrono::seconds(5);

}  // namespace

struct Collective<Cuda>::Peers {
  Peers(Cuda& device, int ranks)
      : inbox(device, kernels::exchange_inbox_bytes(ranks)),
        table(device, sizeof(kernels::ExchangeTable)),
        stop(sizeof(std::uint32_t)),
        others(static_cast<std::size_t>(ranks)) {}

  std::atomic_ref<std::uint32_t> stop_word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(stop.data()));
  }

  SharedMemory inbox;
  SharedMemory table;
  PinnedMemory stop;
  std::vector<PeerMemory> others;  // by rank; this rank's own stays empty
};

Collective<Cuda>::Collective(RankMeeting meeting, Cuda& device)
    : meeting_(std::move(meeting)),
      device_(device),
      peers_(std::make_unique<Peers>(device, meeting_.shard().ranks)) {
  meeting_.set_patience(kJoinPatience);
}

Collective<Cuda>::~Collective() = default;

Result<std::unique_ptr<Collective<Cuda>>> Collective<Cuda>::attach(int fd, const Shard& shard, Cuda& device) {
  if (shard.ranks > kernels::kMostPeers) {
    return invalid("--tensor-parallel-size: got " + std::to_string(shard.ranks) +
                       " on GPUs, expected at most " + std::to_string(kernels::kMostPeers),
                   "tensor-parallel-size");
  }
  Result<RankMeeting> meeting = RankMeeting::attach(fd, shard);
  if (!meeting) return meeting.status();
  return std::unique_ptr<Collective>(new Collective(std::move(*meeting), device));
}

kernels::ExchangeGroup Collective<Cuda>::group() const {
  return {.table = reinterpret_cast<kernels::ExchangeTable*>(peers_->table.data()),
          .stop = reinterpret_cast<const std::uint32_t*>(peers_->stop.data()),
          .rank = shard().rank,
          .ranks = shard().ranks};
}

void Collective<Cuda>::clear(Cuda&, float* memory, std::size_t count) {
  TROUPE_CHECK(cleared_ == nullptr || cleared_ == memory);
  cleared_ = memory;
  cleared_count_ = std::max(cleared_count_, count);
}

void Collective<Cuda>::all_reduce(Cuda& device, float* in, float* out, std::size_t count) {
  kernels::run(device, kernels::SumOverRanks{.group = group(), .in = in, .out = out, .count = count});
}

void Collective<Cuda>::all_gather(Cuda& device, const float* in, std::size_t in_stride, float* out,
                                  std::size_t out_stride, int rows, std::span<const int> first) {
  kernels::GatherColumns op{
      .group = group(), .in = in, .in_stride = in_stride, .out = out, .out_stride = out_stride, .rows = rows};
  TROUPE_CHECK(first.size() == static_cast<std::size_t>(shard().ranks) + 1);
  std::copy(first.begin(), first.end(), op.first);
  kernels::run(device, op);
}

bool Collective<Cuda>::join() {
  if (abandoned()) return false;
  if (joined_) return true;
  const auto meet = [this] { return meeting_.meet([] {}); };
  std::memcpy(meeting_.mine(), &peers_->inbox.address(), sizeof(PeerAddress));
  if (!meet()) return false;

  kernels::ExchangeTable table{};
  table.number = 1;
  table.live = 1;
  for (int rank = 0; rank < shard().ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == shard().rank) {
      table.inboxes[at] = peers_->inbox.data();
      continue;
    }
    PeerAddress address;
    std::memcpy(&address, meeting_.told(rank), sizeof address);
    PeerMemory& other = peers_->others[at];
    if (other.address() != address) {
      other = PeerMemory();  // the one before has died
      Result<PeerMemory> opened = PeerMemory::open(device_, address);
      if (!opened) throw CudaError("rank " + std::to_string(rank) + ": " + opened.status().message);
      other = std::move(*opened);
    }
    table.inboxes[at] = other.data();
  }
  peers_->stop_word().store(0, std::memory_order_release);
  device_.zero(peers_->inbox.data(), peers_->inbox.bytes());
  if (cleared_ != nullptr) device_.zero(cleared_, cleared_count_ * sizeof(float));
  device_.upload(peers_->table.data(), &table, sizeof table);
  device_.sync();
  joined_ = meet();  // no rank writes into an inbox before its owner has cleared it
  return joined_;
}

void Collective<Cuda>::leave() { peers_->stop_word().store(1, std::memory_order_release); }

void Collective<Cuda>::begin_epoch(std::uint32_t epoch) {
  joined_ = false;
  meeting_.begin_epoch(epoch);
}

}  // namespace troupe::model
