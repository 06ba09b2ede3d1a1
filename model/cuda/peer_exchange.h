#pragma once
// A rank's part of the exchanges through the memory of other GPUs (kernels/exchange.h).
#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "gpu/peer_memory.h"
#include "gpu/pinned.h"
#include "kernels/exchange.h"
#include "model/cuda/sum_meter.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// Until connect(), and after disconnect(), a rank takes its own numbers for all. Throws CudaError.
class PeerExchange {
 public:
  /// A graph that has captured calls runs in every epoch.
  static constexpr bool kLastingGraphs = true;

  /// `shares_gpu`: ranks take turns, so no time of an exchange means anything.
  PeerExchange(Cuda& device, const Shard& shard, bool shares_gpu);

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

  /// The size from which on sums go in two steps is the same on all ranks and lasts, as graphs hold it. Two
  /// ranks, and ranks that share a GPU, take what is expected. Others know it from tell()'s message of any
  /// rank that knows it. Where none does, known() is false after connect(): all ranks measure()
  /// together, and when that has been measured() all learn() what rank 0 has found().
  bool known() const { return known_; }
  std::size_t two_steps_from() const { return two_steps_from_; }
  void measure();
  bool measured() const { return meter_->ended(); }
  /// Of this rank's times.
  std::size_t found() const { return model::two_steps_from(meter_->times()); }
  void learn(std::size_t two_steps_from);

  /// Ends the exchanges in flight. Returns at once.
  void leave() { stop_word().store(1, std::memory_order_release); }
  void disconnect();
  void skip_to(std::uint32_t number);

  void all_reduce(float* in, float* out, std::size_t count);
  bool all_reduce(float* in, const kernels::AddRmsNorm& norm);
  void all_gather(const float* in, std::size_t in_stride, float* out, std::size_t out_stride, int rows,
                  std::span<const int> first);

 private:
  std::atomic_ref<std::uint32_t> stop_word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(stop_.data()));
  }
  struct Message;
  kernels::ExchangeGroup group() const;
  Status reach(PeerMemory& memory, const PeerAddress& address, int rank);

  Cuda& device_;
  const Shard shard_;
  SharedMemory inbox_;
  SharedMemory table_;
  PinnedMemory stop_;
  SharedMemory shared_;  // not taken: empty
  std::optional<SumMeter> meter_;
  bool measuring_ = false;
  bool known_ = false;
  std::size_t two_steps_from_;
  std::vector<PeerMemory> others_, others_shared_;  // by rank; this rank's own stays empty
};

}  // namespace troupe::model
