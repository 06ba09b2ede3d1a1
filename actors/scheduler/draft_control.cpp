#include "actors/scheduler/draft_control.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/draft_choices.h"

namespace troupe {
namespace {

/// Weight of the newest step in a time.
constexpr double kNewestTime = 1.0 / 16;
/// Rows after which those before count half in what is accepted, about; and the most that a step counts.
constexpr double kRowsRemembered = 48, kMostOfAStep = 1.0 / 4;

}  // namespace

void DraftControl::attach(std::int32_t most) {
  drafts_ = most > 0 ? draft_choices(most) : std::vector<std::int32_t>{};
  accepted_.fill(1);  // what was not tried yet
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
  if (size.probe_steps >= kProbeSteps && size.probe < choices) return size.probe;
  if (size.since_probe < kProbeEvery) return best;
  const std::size_t next = (size.probe + 1) % choices;
  return next == best ? (next + 1) % choices : next;
}

std::int32_t DraftControl::drafts_for(std::int32_t rows, std::int32_t most) const {
  const auto choices =
      static_cast<std::size_t>(std::upper_bound(drafts_.begin(), drafts_.end(), most) - drafts_.begin());
  return choices < 2 ? 0 : drafts_[choose(sizes_[size_of(rows)], choices)];
}

double DraftControl::tokens_per_row(std::int32_t drafts) const {
  double tokens = 1;
  for (std::int32_t i = 0; i < std::min(drafts, kMostDrafts); ++i)
    tokens += accepted_[static_cast<std::size_t>(i)];
  return tokens;
}

double DraftControl::rate(const Size& size, std::size_t choice) const {
  const Measured& measured = size.choices[choice];
  return measured.seconds > 0 ? tokens_per_row(drafts_[choice]) / measured.seconds : 0;
}

/// `usual`: draft tokens of the best choice. What lies beyond them is seen in probes alone, each of which
/// counts more.
void DraftControl::learn_yields(std::int32_t drafts, std::int32_t usual,
                                std::span<const std::int32_t> yields) {
  if (yields.empty()) return;
  const auto rows = static_cast<double>(yields.size());
  const double weight = std::min(kMostOfAStep, rows / (rows + kRowsRemembered));
  for (std::int32_t i = 0; i < std::min(drafts, kMostDrafts); ++i) {
    const auto more = std::ranges::count_if(yields, [i](std::int32_t count) { return count > i + 1; });
    double& accepted = accepted_[static_cast<std::size_t>(i)];
    accepted += (i < usual ? weight : kMostOfAStep) * (static_cast<double>(more) / rows - accepted);
  }
}

void DraftControl::learn(std::int32_t rows, std::int32_t drafts, std::span<const std::int32_t> yields,
                         double seconds) {
  const auto found = std::ranges::find(drafts_, drafts);
  if (rows <= 0 || seconds <= 0 || found == drafts_.end()) return;
  const auto at = static_cast<std::size_t>(found - drafts_.begin());
  Size& size = sizes_[size_of(rows)];
  ++size.since_probe;
  const bool probes = at != size.best && (size.probe_steps >= kProbeSteps || size.since_probe > kProbeEvery);
  if (!probes || size.probe_steps > 0) learn_yields(drafts, drafts_[size.best], yields);
  Measured& measured = size.choices[at];
  measured.steps = std::min(measured.steps + 1, 1 << 20);
  measured.seconds += std::max(1.0 / measured.steps, kNewestTime) * (seconds - measured.seconds);

  if (probes && ++size.probe_steps >= kProbeSteps) {
    const double tokens = std::accumulate(yields.begin(), yields.end(), 0.0);
    const double step_rate = yields.empty() ? 0 : tokens / static_cast<double>(yields.size()) / seconds;
    if (step_rate <= kHysteresis * rate(size, size.best)) size.probe_steps = 0;
    size.since_probe = 0;
    size.probe = at;
  }
  for (std::size_t i = 0; i < drafts_.size(); ++i) {
    if (size.choices[i].steps >= kFirstSteps && rate(size, i) > kHysteresis * rate(size, size.best))
      size.best = i;
  }
  if (size.probe_steps >= kProbeSteps && size.probe == size.best) size.probe_steps = 0;
}

}  // namespace troupe
