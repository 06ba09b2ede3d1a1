#include "actors/cache/restore_judge.h"

namespace troupe {
namespace {

/// After so many blocks in a row that were not worth a copy, the speeds are measured again.
constexpr std::int64_t kDeclinedBeforeRetry = 256;

}  // namespace

void RestoreJudge::reset(std::int32_t block_tokens, std::uint64_t block_bytes) {
  *this = RestoreJudge();
  block_tokens_ = block_tokens;
  block_bytes_ = block_bytes;
}

Restore RestoreJudge::judge(std::int64_t blocks, bool out, bool in) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * block_bytes_;
  const Restore way = cheaper_restore({blocks * block_tokens_, out ? bytes : 0, in ? bytes : 0},
                                      {prefill_tokens_per_s_, out_speed_.value(), in_speed_.value()});
  if (way == Restore::swap) {
    declined_in_a_row_ = 0;
    return way;
  }
  declined_ += blocks;
  declined_in_a_row_ += blocks;
  if (declined_in_a_row_ >= kDeclinedBeforeRetry) {
    declined_in_a_row_ = 0;
    out_speed_.forget();
    in_speed_.forget();
  }
  return way;
}

}  // namespace troupe
