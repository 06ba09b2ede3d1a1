#include "model/read_rows.h"

#include <algorithm>

#include "base/check.h"

namespace troupe::model {

bool ReadRows::find(const StepBatch& batch, std::span<const kernels::SequenceRows> sequences,
                    std::size_t most) {
  rows_.clear();
  sequences_.clear();
  const std::size_t asked = batch.sample_rows.size() + batch.score_rows.size();
  if (!batch.derived.empty() || asked > most) return false;
  if (asked > 0 && batch.rows() - static_cast<int>(asked) < kFewestSaved) return false;
  rows_.reserve(most);
  sequences_.reserve(most);
  rows_.assign(batch.sample_rows.begin(), batch.sample_rows.end());
  rows_.insert(rows_.end(), batch.score_rows.begin(), batch.score_rows.end());
  std::ranges::sort(rows_);
  const auto repeated = std::ranges::unique(rows_);
  rows_.erase(repeated.begin(), repeated.end());
  const auto sees = [&](std::int32_t row) { return batch.kinds[static_cast<std::size_t>(row)] != kTextRow; };
  if (!batch.kinds.empty() && std::ranges::any_of(rows_, sees)) return false;

  std::size_t s = 0;
  for (const std::int32_t row : rows_) {
    while (s < sequences.size() && row >= sequences[s].row + sequences[s].tokens) ++s;
    TROUPE_CHECK(s < sequences.size() && row >= sequences[s].row);
    sequences_.push_back({.blocks = sequences[s].blocks,
                          .position = sequences[s].position + row - sequences[s].row,
                          .tokens = 1,
                          .row = static_cast<std::int32_t>(sequences_.size())});
  }
  return true;
}

}  // namespace troupe::model
