#include "text/grammar/constraint.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/contain.h"

namespace troupe::grammar {
namespace {

// Far above the slowest mask of a form whose trial was in time, and far below what makes a silent actor
// suspect.
constexpr std::int64_t kMostTokenNs = 250'000'000;

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

void Constraint::look_ahead(std::span<const TokenId> drafts, const TokenMask& now, std::int64_t until_ns,
                            std::vector<TokenMask>& out) {
  const Place before = at_;
  const auto goes_on = [this] { return fault_.ok() && !at_.failed && !at_.too_slow; };
  const std::size_t first = out.size();
  for (const TokenId draft : drafts) {
    const TokenMask& mask = out.size() == first ? now : out.back();
    const bool ends = std::ranges::binary_search(spec_->stop_ids, draft);
    if (ends || !mask.allows(draft) || !goes_on() || thread_cpu_ns() >= until_ns) break;
    accept(draft);
    if (!goes_on()) break;
    TokenMask next;
    this->mask(next);
    if (!goes_on()) break;
    out.push_back(std::move(next));
  }
  const std::int32_t ahead = at_.followed - before.followed;
  at_ = before;
  if (ahead == 0) return;
  const Status back = contain({}, "following a form", {}, [&] { matcher_->take_back(ahead); });
  if (fault_.ok()) fault_ = back;
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
