#pragma once
// Sums and collections over the ranks that run one model together.
//
// Every rank makes the same calls in the same order. The order of a sum is that of the ranks, so that all
// have the same bits, and the same at every time. Once a call has failed (abandoned()) the later ones return
// at once, and what they write means nothing: the step has to be thrown away.
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "gpu/cpu.h"
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
  void begin_epoch() { meeting_.begin_epoch(); }

 private:
  explicit Collective(RankMeeting meeting) : meeting_(std::move(meeting)) {}
  bool meet(Cpu& device);

  RankMeeting meeting_;
};

/// On GPUs one rank runs alone: there is none of these yet.
template <>
class Collective<Cuda> {
 public:
  Collective() = delete;
  const Shard& shard() const { return shard_; }
  void clear(Cuda&, float*, std::size_t) {}
  void all_reduce(Cuda&, const float*, float*, std::size_t) {}
  void all_gather(Cuda&, const float*, std::size_t, float*, std::size_t, int, std::span<const int>) {}

 private:
  Shard shard_;
};

}  // namespace troupe::model
