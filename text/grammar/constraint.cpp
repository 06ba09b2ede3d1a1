#include "text/grammar/constraint.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/contain.h"

namespace troupe::grammar {
namespace {

// Far above the slowest mask of a form whose trial was in time, and far below what makes a silent actor
// suspect.
constexpr std::int64_t kMostTokenNs = 250'000'000;

// More tokens than begin one token of any vocabulary.
constexpr std::size_t kMostPrefixes = 64;

std::size_t words_for(int vocabulary) { return (static_cast<std::size_t>(vocabulary) + 31) / 32; }

/// The ids whose bit is `set`, instead of the bits.
void list_ids(std::vector<std::uint32_t>& words, int vocabulary, bool set) {
  std::vector<std::uint32_t> ids;
  for (std::size_t w = 0; w < words.size(); ++w) {
    std::uint32_t word = set ? words[w] : ~words[w];
    for (; word != 0; word &= word - 1) {
      const auto id = static_cast<std::uint32_t>(w * 32) + static_cast<std::uint32_t>(std::countr_zero(word));
      if (id < static_cast<std::uint32_t>(vocabulary)) ids.push_back(id);
    }
  }
  words = std::move(ids);
}

}  // namespace

bool TokenMask::allows(TokenId token) const {
  const auto id = static_cast<std::uint32_t>(token);
  switch (form) {
    case Form::all: return true;
    case Form::bits: return id / 32 < words.size() && (words[id / 32] >> id % 32 & 1) != 0;
    case Form::allowed: return std::ranges::binary_search(words, id);
    case Form::denied: return !std::ranges::binary_search(words, id);
  }
  return false;
}

Constraint::Constraint(std::shared_ptr<const ConstraintSpec> spec) : spec_(std::move(spec)) {
  at_.thinking = spec_->thinking.open && spec_->thinking.end >= 0;
  if (spec_->form != nullptr) matcher_.emplace(spec_->form);
}

void Constraint::accept(TokenId token) {
  ++at_.tokens;
  if (fault_.ok()) fault_ = contain({}, "following a form", {}, [&] { follow(token); });
}

void Constraint::mask(TokenMask& out) {
  if (fault_.ok()) fault_ = contain({}, "mask", {}, [&] { make_mask(out); });
  if (fault_.ok()) return;
  out.form = TokenMask::Form::all;
  out.words.clear();
}

void Constraint::look_ahead(std::span<const TokenId> drafts, std::size_t most_forced, const TokenMask& now,
                            std::int64_t until_ns, Ahead& out) {
  out.clear();
  const Place before = at_;
  const auto last = [&]() -> const TokenMask& { return out.masks.empty() ? now : out.masks.back(); };
  for (const TokenId draft : drafts) {
    TokenMask next;
    if (!step_ahead(draft, last(), until_ns, next)) break;
    out.masks.push_back(std::move(next));
  }
  TokenMask here, next;
  for (const TokenMask* mask = &last(); out.forced.size() < most_forced; mask = &here) {
    const std::optional<TokenId> token = forced_token(*mask);
    if (!token) break;
    out.forced.push_back(*token);
    if (out.forced.size() == most_forced || !step_ahead(*token, *mask, until_ns, next)) break;
    std::swap(here, next);
  }
  if (out.forced.size() < 2) out.forced.clear();
  const std::int32_t ahead = at_.followed - before.followed;
  at_ = before;
  if (ahead == 0) return;
  const Status back = contain({}, "following a form", {}, [&] { matcher_->take_back(ahead); });
  if (fault_.ok()) fault_ = back;
}

/// Accepts a token of a guess; false if the guess ends before it.
bool Constraint::step_ahead(TokenId token, const TokenMask& now, std::int64_t until_ns, TokenMask& next) {
  const auto goes_on = [this] { return fault_.ok() && !at_.failed && !at_.too_slow; };
  const bool ends = std::ranges::binary_search(spec_->stop_ids, token);
  if (ends || !now.allows(token) || !goes_on() || thread_cpu_ns() >= until_ns) return false;
  accept(token);
  if (!goes_on()) return false;
  mask(next);
  return goes_on();
}

/// The longest token that the mask allows, if all others begin it: a forced text may begin with several.
std::optional<TokenId> Constraint::forced_token(const TokenMask& mask) const {
  if (mask.form != TokenMask::Form::allowed || mask.words.empty() || mask.words.size() > kMostPrefixes)
    return {};
  auto longest = static_cast<TokenId>(mask.words.front());
  if (mask.words.size() > 1) {
    if (spec_->form == nullptr) return {};
    const auto text = [this](std::uint32_t id) { return spec_->form->text_of(static_cast<TokenId>(id)); };
    const auto size = [&text](std::uint32_t id) { return text(id).size(); };
    longest = static_cast<TokenId>(*std::ranges::max_element(mask.words, {}, size));
    const std::string_view whole = spec_->form->text_of(longest);
    const auto begins = [&](std::uint32_t id) { return !text(id).empty() && whole.starts_with(text(id)); };
    if (!std::ranges::all_of(mask.words, begins)) return {};
  }
  if (std::ranges::binary_search(spec_->stop_ids, longest)) return {};
  return longest;
}

void Constraint::follow(TokenId token) {
  if (at_.thinking) {
    think(token);
  } else if (matcher_ && !matcher_->ended() && !at_.failed && !at_.too_slow) {
    const std::int64_t begin = thread_cpu_ns();
    at_.failed = !matcher_->accept(token);
    at_.followed += at_.failed ? 0 : 1;
    at_.accept_ns = thread_cpu_ns() - begin;
    at_.too_slow = at_.accept_ns > kMostTokenNs;
  }
}

void Constraint::think(TokenId token) {
  const ThinkingRule& rule = spec_->thinking;
  const bool over = rule.budget >= 0 && at_.tokens > rule.budget;
  if (over && at_.forced < rule.forced.size()) ++at_.forced;
  if (token == rule.end && (!over || at_.forced >= rule.forced.size())) at_.thinking = false;
}

void Constraint::make_mask(TokenMask& out) {
  out.form = TokenMask::Form::all;
  out.words.clear();
  if (at_.thinking) {
    const ThinkingRule& rule = spec_->thinking;
    if (rule.budget < 0 || at_.tokens < rule.budget) {
      if (rule.denied.empty()) return;
      out.form = TokenMask::Form::denied;
      out.words.assign(rule.denied.begin(), rule.denied.end());
      return;
    }
    out.form = TokenMask::Form::allowed;
    out.words.push_back(
        static_cast<std::uint32_t>(at_.forced < rule.forced.size() ? rule.forced[at_.forced] : rule.end));
    return;
  }
  if (!matcher_) return;
  if (at_.failed || at_.too_slow || matcher_->ended()) return stop_only(out);

  out.words.assign(words_for(spec_->vocabulary), 0);
  const std::int64_t begin = thread_cpu_ns();
  matcher_->fill(out.words);
  at_.too_slow = at_.accept_ns + thread_cpu_ns() - begin > kMostTokenNs;
  if (at_.too_slow) return stop_only(out);
  if (spec_->vocabulary % 32 != 0) out.words.back() &= (1u << (spec_->vocabulary % 32)) - 1;
  std::size_t count = 0;
  for (const std::uint32_t word : out.words) count += static_cast<std::size_t>(std::popcount(word));
  const auto all = static_cast<std::size_t>(spec_->vocabulary);
  if (count == 0) return stop_only(out);
  if (count == all) {
    out.words.clear();
  } else if (count < out.words.size()) {
    out.form = TokenMask::Form::allowed;
    list_ids(out.words, spec_->vocabulary, true);
  } else if (all - count < out.words.size()) {
    out.form = TokenMask::Form::denied;
    list_ids(out.words, spec_->vocabulary, false);
  } else {
    out.form = TokenMask::Form::bits;
  }
}

void Constraint::stop_only(TokenMask& out) const {
  out.words.clear();
  out.form = spec_->stop_ids.empty() ? TokenMask::Form::all : TokenMask::Form::allowed;
  for (const TokenId id : spec_->stop_ids) out.words.push_back(static_cast<std::uint32_t>(id));
}

}  // namespace troupe::grammar
