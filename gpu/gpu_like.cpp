#include "gpu/gpu_like.h"

#include "base/check.h"
#include "gpu/gpu_checks.h"

namespace troupe {
namespace {

std::optional<Card>& current() {
  static std::optional<Card> like = [] {
    constexpr std::string_view built_for = TROUPE_CUDA_LIKE;
    std::optional<Card> card;
    if (!built_for.empty()) {
      Result<Card> made = card_like(built_for);
      TROUPE_CHECK(made.ok());
      card = made.value();
    }
    return card;
  }();
  return like;
}

}  // namespace

Result<Card> card_like(std::string_view name) {
  for (const Card& card : cards()) {
    if (card.capability < kLeastCapability || name != capability_text(card.capability)) continue;
    Card like = card;
    like.multiprocessors = 0;
    return like;
  }
  Result<Card> card = find_card(name);
  if (!card.ok() || card.value().capability >= kLeastCapability) return card;
  return invalid("the card to run as: got \"" + std::string(name) + "\", whose compute capability is below " +
                     capability_text(kLeastCapability),
                 "card");
}

Status set_gpu_like(std::string_view name) {
  if (name.empty()) {
    current().reset();
    return {};
  }
  Result<Card> card = card_like(name);
  if (!card.ok()) return card.status();
  current() = card.value();
  return {};
}

void set_gpu_like(std::optional<Card> card) { current() = card; }

std::optional<Card> gpu_like() { return current(); }

bool keeps_gpus_apart() { return current() && !current()->reaches_peers; }

}  // namespace troupe
