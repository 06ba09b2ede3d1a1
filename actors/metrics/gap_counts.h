#pragma once
// How long the client of one request waited for each token after the first: counts by bucket, so that a long
// answer is as small a message as a short one.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe::metrics {

/// Upper bounds in seconds; longer gaps count in one more bucket.
inline constexpr std::array kGapBounds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
                                          .075,  .1,     .15,   .25,  .5,    1.,   2.5, 5.,   10.};

struct GapCounts {
  std::array<std::uint32_t, kGapBounds.size() + 1> counts{};
  double sum_s = 0;

  /// `tokens` tokens that came together, `gap_s` seconds after the token before them.
  void add(double gap_s, std::int32_t tokens) {
    const double each = gap_s / tokens;
    const auto at = std::lower_bound(kGapBounds.begin(), kGapBounds.end(), each) - kGapBounds.begin();
    counts[static_cast<std::size_t>(at)] += static_cast<std::uint32_t>(tokens);
    sum_s += gap_s;
  }
};

}  // namespace troupe::metrics
