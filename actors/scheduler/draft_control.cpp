#include "actors/scheduler/draft_control.h"

#include <algorithm>
#include <bit>

namespace troupe {
namespace {

/// Weight of the newest step in the sums.
constexpr double kNewest = 1.0 / 16, kNewestProbe = 1.0 / 4;

}  // namespace

void DraftControl::attach(std::int32_t most) {
  drafts_ = {0, (most + 1) / 2, most};
  const auto end = std::unique(drafts_.begin(), drafts_.end());
  choices_ = static_cast<std::size_t>(end - drafts_.begin());
  sizes_ = {};
}

std::size_t DraftControl::size_of(std::int32_t rows) {
  const auto above = static_cast<std::uint32_t>(std::max(1, rows) - 1);
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(above)), kSizes - 1);
}

/// One of the first `choices`, at least 2.
std::size_t DraftControl::choose(const Size& size, std::size_t choices) const {
  for (std::size_t i = choices; i-- > 0;) {
    if (size.choices[i].steps < kFirstSteps) return i;
  }
  const std::size_t best = std::min(size.best, choices - 1);
  if (size.since_probe < kProbeEvery) return best;
  const std::size_t next = (size.probe + 1) % choices;
  return next == best ? (next + 1) % choices : next;
}

std::int32_t DraftControl::drafts_for(std::int32_t rows, std::int32_t most) const {
  const auto end = drafts_.begin() + static_cast<std::ptrdiff_t>(choices_);
  const auto choices =
      static_cast<std::size_t>(std::upper_bound(drafts_.begin(), end, most) - drafts_.begin());
  return choices < 2 ? 0 : drafts_[choose(sizes_[size_of(rows)], choices)];
}

void DraftControl::learn(std::int32_t rows, std::int32_t drafts, std::int32_t yielded, double seconds) {
  const auto found =
      std::find(drafts_.begin(), drafts_.begin() + static_cast<std::ptrdiff_t>(choices_), drafts);
  if (rows <= 0 || seconds <= 0 || found == drafts_.begin() + static_cast<std::ptrdiff_t>(choices_)) return;
  const auto at = static_cast<std::size_t>(found - drafts_.begin());
  Size& size = sizes_[size_of(rows)];
  Measured& measured = size.choices[at];
  ++measured.steps;
  const double weight = std::max(1.0 / measured.steps, at == size.best ? kNewest : kNewestProbe);
  measured.tokens_per_row += weight * (static_cast<double>(yielded) / rows - measured.tokens_per_row);
  measured.seconds += weight * (seconds - measured.seconds);
  measured.steps = std::min(measured.steps, 1 << 20);

  ++size.since_probe;
  if (at != size.best && size.since_probe > kProbeEvery) {
    size.since_probe = 0;
    size.probe = at;
  }
  for (std::size_t i = 0; i < choices_; ++i) {
    if (size.choices[i].steps >= kFirstSteps &&
        size.choices[i].rate() > kHysteresis * size.choices[size.best].rate())
      size.best = i;
  }
}

}  // namespace troupe
