#include "model/drafts/predicted_drafter.h"

#include <algorithm>
#include <utility>

namespace troupe::model {

PredictedDrafter::PredictedDrafter(int slots, std::unique_ptr<Drafter> other)
    : other_(std::move(other)), slots_(static_cast<std::size_t>(slots)) {}

void PredictedDrafter::start(std::uint32_t index, std::int32_t prompt_tokens,
                             std::span<const TokenId> prediction) {
  Slot& slot = slots_[index];
  slot.prediction.assign(prediction.begin(), prediction.end());
  slot.prompt = slot.seen = static_cast<std::size_t>(prompt_tokens);
  slot.next = 0;
  slot.follows = true;
  other_->start(index, prompt_tokens, prediction);
}

/// The answer is followed from its beginning.
void PredictedDrafter::rewind(std::uint32_t index) {
  Slot& slot = slots_[index];
  slot.seen = slot.prompt;
  slot.next = 0;
  slot.follows = true;
  other_->rewind(index);
}

Drafts PredictedDrafter::draft(std::uint32_t index, std::span<const TokenId> ids, std::span<TokenId> out) {
  Slot& slot = slots_[index];
  const std::vector<TokenId>& prediction = slot.prediction;
  if (prediction.empty()) return other_->draft(index, ids, out);
  for (; slot.seen < ids.size(); ++slot.seen) {
    slot.follows = slot.follows && slot.next < prediction.size() && prediction[slot.next] == ids[slot.seen];
    slot.next += slot.follows ? 1 : 0;
    if (!slot.follows) find_again(slot, ids.first(slot.seen + 1));
  }
  if (!slot.follows || slot.next == prediction.size()) return other_->draft(index, ids, out);
  const std::size_t count = std::min(out.size(), prediction.size() - slot.next);
  std::copy_n(prediction.begin() + static_cast<std::ptrdiff_t>(slot.next), count, out.begin());
  return {count, true};
}

void PredictedDrafter::find_again(Slot& slot, std::span<const TokenId> ids) {
  if (ids.size() < kAnchor || slot.prediction.size() < kAnchor) return;
  const std::span<const TokenId> anchor = ids.last(kAnchor);
  const auto left = slot.prediction.begin() + static_cast<std::ptrdiff_t>(slot.next);
  auto found = std::search(left, slot.prediction.end(), anchor.begin(), anchor.end());
  if (found == slot.prediction.end()) {
    found = std::search(slot.prediction.begin(), slot.prediction.end(), anchor.begin(), anchor.end());
  }
  if (found == slot.prediction.end()) return;
  slot.next = static_cast<std::size_t>(found - slot.prediction.begin()) + kAnchor;
  slot.follows = true;
}

}  // namespace troupe::model
