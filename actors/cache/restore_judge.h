#pragma once
// Copying against computing again, for blocks of one worker, by the speeds that were measured so far.
#include <cstdint>

#include "actors/cache/restore_cost.h"

namespace troupe {

/// Used by one thread. Every call is O(1).
class RestoreJudge {
 public:
  /// Forgets everything: a worker with blocks of this size was attached.
  void reset(std::int32_t block_tokens, std::uint64_t block_bytes);

  /// What the last steps have computed; 0: not known yet.
  void set_prefill_speed(double tokens_per_s) { prefill_tokens_per_s_ = tokens_per_s; }
  /// So many blocks were copied out of the KV memory, or into it, within `seconds`. Ignored when either is
  /// not above 0.
  void add_out(std::int64_t blocks, double seconds) { out_speed_.add(bytes_of(blocks), seconds); }
  void add_in(std::int64_t blocks, double seconds) { in_speed_.add(bytes_of(blocks), seconds); }

  /// The cheaper way to have the contents of so many blocks again. `out`, `in`: what copying them includes.
  /// Blocks that are not worth a copy are counted as declined. After many in a row the speeds are forgotten,
  /// so that they are measured again.
  Restore judge(std::int64_t blocks, bool out, bool in);

  /// Blocks declined since reset().
  std::int64_t declined() const { return declined_; }

 private:
  double bytes_of(std::int64_t blocks) const {
    return static_cast<double>(blocks) * static_cast<double>(block_bytes_);
  }

  std::int64_t block_tokens_ = 1;
  std::uint64_t block_bytes_ = 0;
  double prefill_tokens_per_s_ = 0;
  MeasuredSpeed out_speed_;
  MeasuredSpeed in_speed_;
  std::int64_t declined_ = 0;
  std::int64_t declined_in_a_row_ = 0;
};

}  // namespace troupe
