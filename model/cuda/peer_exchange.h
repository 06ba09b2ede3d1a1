#pragma once
// A rank's part of the exchanges through the memory of other GPUs (kernels/exchange.h).
#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "gpu/peer_memory.h"
#include "gpu/pinned.h"
#include "kernels/exchange.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// Until connect(), and after disconnect(), a rank takes its own numbers for all. Throws CudaError.
class PeerExchange {
 public:
  /// A graph that has captured calls runs in every epoch.
  static constexpr bool kLastingGraphs = true;

  PeerExchange(Cuda& device, const Shard& shard);

  /// Takes memory that the others' copies reach from connect() on. Once, before the first tell().
  bool share(std::size_t bytes) {
    shared_ = SharedMemory(device_, bytes);
    return true;
  }
  /// That of a rank, this one's too.
  std::byte* shared(int rank) const {
    return rank == shard_.rank ? shared_.data() : others_shared_[static_cast<std::size_t>(rank)].data();
  }

  /// Writes what the other ranks have to know of this one.
  void tell(std::byte* to) const;
  /// `message_of(rank)`: what that rank has written by tell(). Clears this rank's memory for the exchanges of
  /// an epoch; no other rank may write there before that. The device must be idle, and is afterwards.
  /// unavailable: the memory of a rank, which the message names, cannot be reached; also where that rank has
  /// died since then.
  Status connect(const std::function<const std::byte*(int)>& message_of);
  bool connected() const { return true; }
  /// Ends the exchanges in flight. Returns at once.
  void leave() { stop_word().store(1, std::memory_order_release); }
  void disconnect() {}
  void skip_to(std::uint32_t number);

  void all_reduce(float* in, float* out, std::size_t count);
  bool all_reduce(float* in, const kernels::AddRmsNorm& norm);
  void all_gather(const float* in, std::size_t in_stride, float* out, std::size_t out_stride, int rows,
                  std::span<const int> first);

 private:
  std::atomic_ref<std::uint32_t> stop_word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(stop_.data()));
  }
  kernels::ExchangeGroup group() const;
  Status reach(PeerMemory& memory, const PeerAddress& address, int rank);

  Cuda& device_;
  const Shard shard_;
  SharedMemory inbox_;
  SharedMemory table_;
  PinnedMemory stop_;
  SharedMemory shared_;                             // not taken: empty
  std::vector<PeerMemory> others_, others_shared_;  // by rank; this rank's own stays empty
};

}  // namespace troupe::model
