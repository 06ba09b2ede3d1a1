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
#include "kernels/add_rms_norm.h"
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
  /// The same for the rows of a residual stream: norm.residual is the `out`. True: `norm` has been run on it,
  /// too.
  bool all_reduce(Cpu& device, const float* in, const kernels::AddRmsNorm& norm);

  /// Rows of which each rank has the columns [first[rank], first[rank + 1]): `in` has its columns alone,
  /// `in_stride` floats from row to row; `out` gets all, `out_stride` from row to row.
  void all_gather(Cpu& device, const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                  int rows, std::span<const int> first);

  bool abandoned() const { return meeting_.abandoned(); }
  const Status& late() const { return meeting_.late(); }
  void begin_epoch(std::uint32_t epoch) { meeting_.begin_epoch(epoch); }
  void set_patience(Duration patience) { meeting_.set_patience(patience); }

 private:
  explicit Collective(RankMeeting meeting) : meeting_(std::move(meeting)) {}
  bool meet(Cpu& device);

  RankMeeting meeting_;
};

/// Over GPUs: through each other's memory, where an exchange is one kernel and nothing of it waits on the
/// host, or over NCCL. The ranks meet on the host once an epoch, before their first step.
///
/// Until join() has returned true, and after leave(), exchanges take the rank's own numbers for all: so a
/// rank warms up alone.
template <>
class Collective<Cuda> {
 public:
  /// Takes memory on `device`, which must outlive it. `fd` is not kept. `shares_gpu`: with other ranks.
  /// Throws CudaError.
  static Result<std::unique_ptr<Collective>> attach(int fd, const Shard& shard, Cuda& device,
                                                    bool nccl = false, bool shares_gpu = false);
  ~Collective();

  const Shard& shard() const { return meeting_.shard(); }
  /// False: a graph that has captured calls is good for the epoch in which it was captured, after join(), and
  /// has to be destroyed before begin_epoch().
  bool lasting_graphs() const;
  /// False: the first join() finds out which sums go in two steps (kernels/exchange.h), and graphs have to be
  /// captured after it.
  bool knows_steps() const;
  /// Sums of so many numbers or more go in two steps; `numbers` is the same on all ranks. Graphs hold it. Not
  /// over NCCL. For tests and measurements.
  void set_two_steps_from(std::size_t numbers);
  std::size_t two_steps_from() const;

  /// `memory` is zero before the first call and whenever it has been an all_reduce()'s `in`: only join()
  /// clears it.
  void clear(Cuda& device, float* memory, std::size_t count);
  /// `in`, if it is not `out`, is zero afterwards.
  void all_reduce(Cuda& device, float* in, float* out, std::size_t count);
  bool all_reduce(Cuda& device, float* in, const kernels::AddRmsNorm& norm);
  void all_gather(Cuda& device, const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                  int rows, std::span<const int> first);

  /// Takes memory that the other ranks' copies reach while they are joined. Once, before the first join().
  /// False where they do not reach each other's memory.
  bool share(std::size_t bytes);
  /// That of a rank as this one reaches it, valid while joined().
  std::byte* shared(int rank) const;
  /// For notes alone (JointWork).
  RankMeeting& meeting() { return meeting_; }

  /// Goes on with meeting the other ranks of the epoch as far as that is possible without waiting. True once
  /// all have met, until begin_epoch(). The device must be idle. Throws when all have come and have still not
  /// found each other after RankMeeting::kPatience: NCCL itself looks for ever, and a rank whose memory
  /// cannot be reached has most often died since it came, which ends the epoch.
  bool join();
  /// Sets the number of the next exchange, on all ranks while none has one in flight. For tests of
  /// kernels::kLastExchange, which others reach after weeks.
  void skip_to_exchange(std::uint32_t number);
  /// Ends the exchanges in flight, whose numbers mean nothing. Returns at once. Over NCCL nothing can end
  /// them.
  void leave();

  bool joined() const { return stage_ == Stage::joined; }
  /// True once the epoch has ended: no exchange means anything until begin_epoch().
  bool abandoned() const { return meeting_.ended(); }
  /// The device must be idle.
  void begin_epoch(std::uint32_t epoch);

 private:
  enum class Stage { alone, meeting, unreachable, connecting, waiting, measuring, telling, joined };
  struct Way;
  Collective(RankMeeting meeting, Cuda& device, std::unique_ptr<Way> way);
  bool go_on();

  RankMeeting meeting_;
  Cuda& device_;
  std::unique_ptr<Way> way_;
  Stage stage_ = Stage::alone;
  TimePoint here_{};  // when all ranks had come to the epoch
  Status unreachable_;
  float* cleared_ = nullptr;
  std::size_t cleared_count_ = 0;
};

}  // namespace troupe::model
