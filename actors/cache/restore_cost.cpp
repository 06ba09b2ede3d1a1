#include "actors/cache/restore_cost.h"

namespace troupe {

Restore cheaper_restore(const RestoreWork& work, const RestoreSpeeds& speeds) {
  const bool out_known = work.out_bytes == 0 || speeds.out_bytes_per_s > 0;
  const bool in_known = work.in_bytes == 0 || speeds.in_bytes_per_s > 0;
  if (!out_known || !in_known || speeds.prefill_tokens_per_s <= 0) return Restore::swap;
  double copy_s = 0;
  if (work.out_bytes > 0) copy_s += static_cast<double>(work.out_bytes) / speeds.out_bytes_per_s;
  if (work.in_bytes > 0) copy_s += static_cast<double>(work.in_bytes) / speeds.in_bytes_per_s;
  const double compute_s = static_cast<double>(work.tokens) / speeds.prefill_tokens_per_s;
  return copy_s <= compute_s ? Restore::swap : Restore::recompute;
}

void MeasuredSpeed::add(double amount, double seconds) {
  if (!(amount > 0) || !(seconds > 0)) return;
  const double speed = amount / seconds;
  value_ = value_ > 0 ? value_ + (speed - value_) / 4 : speed;
}

}  // namespace troupe
