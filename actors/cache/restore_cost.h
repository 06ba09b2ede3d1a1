#pragma once
// Whether contents that left the KV memory are worth a copy, or are computed again in less time.
#include <cstdint>

namespace troupe {

/// Measured speeds; 0: not known yet.
struct RestoreSpeeds {
  double prefill_tokens_per_s = 0;
  double out_bytes_per_s = 0;  ///< KV memory → swap space
  double in_bytes_per_s = 0;   ///< swap space → KV memory
};

/// One way to have `tokens` positions in the KV memory again, and what the other would have to copy.
struct RestoreWork {
  std::int64_t tokens = 0;
  std::uint64_t out_bytes = 0;  ///< still to be copied out
  std::uint64_t in_bytes = 0;
};

enum class Restore : std::uint8_t { swap, recompute };

/// The way that takes less time. Swap while a speed that the comparison needs is not known: it is measured
/// then.
Restore cheaper_restore(const RestoreWork& work, const RestoreSpeeds& speeds);

/// A speed that follows its measurements: each counts for a quarter.
class MeasuredSpeed {
 public:
  /// Ignored when either is not above 0.
  void add(double amount, double seconds);
  void forget() { value_ = 0; }
  double value() const { return value_; }

 private:
  double value_ = 0;
};

}  // namespace troupe
