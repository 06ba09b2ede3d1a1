#pragma once
// Sums and collections over the ranks that run one model together.
//
// Every rank makes the same calls in the same order. The order of a sum is that of the ranks, so that all
// have the same bits, and the same at every time. Once a call has failed (abandoned()) the later ones return
// at once, and what they write means nothing: the step has to be thrown away.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "gpu/cpu.h"
#include "gpu/cuda.h"
#include "kernels/exchange.h"
#include "model/ranks/rank_memory.h"

namespace troupe::model {

template <class D>
class Collective;

/// Over shared memory.
template <>
class Collective<Cpu> {
 public:
  /// `fd`: of create_rank_memory(); it is not kept.
  static Result<std::unique_ptr<Collective>> attach(int fd, const Shard& shard);

  const Shard& shard() const { return meeting_.shard(); }

  /// Sets to zero, and calls no other rank.
  void clear(Cpu& device, float* memory, std::size_t count);

  /// out[i] = in[i] of rank 0 + in[i] of rank 1 + …; `in` may be `out`.
  void all_reduce(Cpu& device, const float* in, float* out, std::size_t count);

  /// Rows of which each rank has the columns [first[rank], first[rank + 1]): `in` has its columns alone,
  /// `in_stride` floats from row to row; `out` gets all, `out_stride` from row to row.
  void all_gather(Cpu& device, const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                  int rows, std::span<const int> first);

  bool abandoned() const { return meeting_.abandoned(); }
  const Status& late() const { return meeting_.late(); }
  void begin_epoch(std::uint32_t epoch) { meeting_.begin_epoch(epoch); }

 private:
  explicit Collective(RankMeeting meeting) : meeting_(std::move(meeting)) {}
  bool meet(Cpu& device);

  RankMeeting meeting_;
};

/// Over memory of GPUs that reach each other's (kernels/exchange.h). An exchange is one kernel, and nothing
/// of it waits on the host; the ranks meet on the host once an epoch, before their first step.
///
/// Until join(), and after leave(), exchanges take the rank's own numbers for all: so a rank warms up and
/// captures its graphs alone.
template <>
class Collective<Cuda> {
 public:
  /// Takes memory on `device`, which must outlive it. `fd` is not kept. Throws CudaError.
  static Result<std::unique_ptr<Collective>> attach(int fd, const Shard& shard, Cuda& device);
  ~Collective();

  const Shard& shard() const { return meeting_.shard(); }

  /// `memory` is zero before the first call and whenever it has been an all_reduce()'s `in`: only join()
  /// clears it.
  void clear(Cuda& device, float* memory, std::size_t count);
  /// `in`, if it is not `out`, is zero afterwards.
  void all_reduce(Cuda& device, float* in, float* out, std::size_t count);
  void all_gather(Cuda& device, const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                  int rows, std::span<const int> first);

  /// Waits for all ranks of the epoch and opens their memory. The device must be idle. Once it has succeeded
  /// it does nothing until begin_epoch(). False: abandoned().
  bool join();
  /// Ends the exchanges in flight, whose numbers mean nothing. Returns at once.
  void leave();

  bool abandoned() const { return meeting_.abandoned() || meeting_.ended(); }
  const Status& late() const { return meeting_.late(); }
  /// The device must be idle.
  void begin_epoch(std::uint32_t epoch);
  void set_patience(Duration patience) { meeting_.set_patience(patience); }

 private:
  struct Peers;
  Collective(RankMeeting meeting, Cuda& device);
  kernels::ExchangeGroup group() const;

  RankMeeting meeting_;
  Cuda& device_;
  std::unique_ptr<Peers> peers_;
  float* cleared_ = nullptr;
  std::size_t cleared_count_ = 0;
  bool joined_ = false;
};

}  // namespace troupe::model
