#pragma once
// A rank's part of the exchanges over NCCL, for GPUs that do not reach each other's memory.
#include <functional>
#include <optional>
#include <span>

#include "gpu/buffer.h"
#include "gpu/nccl.h"
#include "kernels/add_rms_norm.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// Until connect(), and after disconnect(), a rank takes its own numbers for all. Throws CudaError.
class NcclExchange {
 public:
  /// A graph that has captured calls holds the epoch's communicator: it is captured after connected(), and
  /// has to go before disconnect().
  static constexpr bool kLastingGraphs = false;

  /// `shares_gpu`: with other ranks.
  NcclExchange(Cuda& device, const Shard& shard, bool shares_gpu);

  /// There is no memory that all reach.
  bool share(std::size_t) { return false; }
  std::byte* shared(int) const { return nullptr; }

  void tell(std::byte* to) const;
  /// Begins to look for the other ranks.
  Status connect(const std::function<const std::byte*(int)>& message_of);
  /// True once all have found each other.
  bool connected() { return group_->ready(); }
  /// Exchanges in flight end with those of the other ranks, or not at all.
  void leave() {}
  /// The device must be idle. Throws while the ranks look for each other: that cannot be called off.
  void disconnect();
  void skip_to(std::uint32_t) {}  // NCCL counts by itself

  void all_reduce(float* in, float* out, std::size_t count);
  bool all_reduce(float* in, const kernels::AddRmsNorm& norm);
  void all_gather(const float* in, std::size_t in_stride, float* out, std::size_t out_stride, int rows,
                  std::span<const int> first);

 private:
  Cuda& device_;
  const Shard shard_;
  Buffer<Cuda> columns_;  // of all ranks and, behind them, of this one: dense, of the same width
  std::optional<NcclGroup> group_;
};

}  // namespace troupe::model
