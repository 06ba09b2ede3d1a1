#include "actors/grammar/grammars.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

// Of each mask so much is free: some hundred times what one takes. What goes beyond adds up, and sinks with
// each cheaper mask; a request ends when it has become more than the rest.
constexpr std::int64_t kFreeNs = 5'000'000;
constexpr std::int64_t kMostDebtNs = 2'000'000'000;
constexpr std::int64_t kMostDebtOfSequenceNs = 100'000'000;  // more for each sequence

}  // namespace

bool FormAccount::charge(std::int64_t cost_ns) {
  debt_ns_ = std::max<std::int64_t>(0, debt_ns_ + cost_ns - kFreeNs);
  return debt_ns_ <= kMostDebtNs + sequences_ * kMostDebtOfSequenceNs;
}

std::uint64_t Grammars::add(std::shared_ptr<const grammar::ConstraintSpec> spec) {
  specs_.emplace(next_, Grammar{std::move(spec), std::make_shared<FormAccount>()});
  return next_++;
}

void Grammars::release(std::uint64_t grammar) { specs_.erase(grammar); }

std::vector<ReadyRow>& Grammars::take(const GrammarStep& update) {
  ++takes_;
  ready_.clear();
  if (update.epoch > epoch_) {
    epoch_ = update.epoch;
    for (auto& [key, sequence] : sequences_) {
      sequence.rows.clear();
      sequence.late = false;
    }
  }
  for (const GrammarStart& started : update.starts) start(started);
  for (const GrammarTokens& part : update.sequences) {
    const auto it = sequences_.find(part.key);
    if (it == sequences_.end()) continue;
    const auto first = update.tokens.begin() + part.first;
    it->second.new_tokens.insert(it->second.new_tokens.end(), first, first + part.count);
    if (part.count > 0) it->second.drafts.assign(first + part.count, first + part.count + part.drafts);
    it->second.tokens += part.count;
    ++it->second.updates;
  }
  for (const RequestKey& key : update.ends) end(key);
  for (const GrammarTokens& part : update.sequences) {
    if (const auto it = sequences_.find(part.key); it != sequences_.end()) settle(it->second, ready_);
  }
  if (update.epoch == epoch_) {
    for (const MaskAsk& row : update.rows) ask(row, update.step);
  }
  return ready_;
}

bool Grammars::done(const RequestKey& key) {
  const auto it = sequences_.find(key);
  return it != sequences_.end() && std::exchange(it->second.busy, false);
}

void Grammars::late(const RequestKey& key, std::vector<ReadyRow>& rows) {
  const auto it = sequences_.find(key);
  if (it == sequences_.end()) return;
  it->second.late = true;
  settle(it->second, rows);
}

bool Grammars::made(const RequestKey& key) {
  const auto it = sequences_.find(key);
  if (it == sequences_.end()) return false;
  it->second.busy = false;
  it->second.made_for = it->second.tokens - static_cast<std::int32_t>(it->second.new_tokens.size());
  return true;
}

bool Grammars::charge(const RequestKey& key, std::int64_t cost_ns) {
  const auto it = sequences_.find(key);
  return it == sequences_.end() || it->second.account->charge(cost_ns);
}

std::uint64_t Grammars::grammar_of(const RequestKey& key) const {
  const auto it = sequences_.find(key);
  return it == sequences_.end() ? 0 : it->second.grammar;
}

std::size_t Grammars::waiting() const {
  std::size_t rows = 0;
  for (const auto& [key, sequence] : sequences_) rows += sequence.rows.size();
  return rows;
}

void Grammars::start(const GrammarStart& start) {
  const auto grammar = specs_.find(start.grammar);
  if (grammar == specs_.end()) return;  // the request has ended before its sequence began
  const auto& [spec, account] = grammar->second;
  auto follower = std::make_shared<Follower>(Follower{grammar::Constraint(spec), start.key});
  sequences_.try_emplace(start.key, Sequence{std::move(follower), start.grammar, account, start.gated_from});
  account->add_sequence();
}

void Grammars::end(const RequestKey& key) {
  const auto it = sequences_.find(key);
  if (it == sequences_.end()) return;
  for (const Row& row : it->second.rows) ready_.push_back({.step = row.step, .slot = row.slot});
  sequences_.erase(it);
}

void Grammars::ask(const MaskAsk& ask, std::uint64_t step) {
  const auto it = sequences_.find(ask.key);
  if (it == sequences_.end()) {
    ready_.push_back({.step = step, .slot = ask.slot});
    return;
  }
  it->second.rows.push_back({step, ask.slot, ask.updates, ask.places, ask.forced});
  settle(it->second, ready_);
}

/// Makes the rows ready whose tokens have come. A late row that is asked for again verifies no draft tokens.
/// A row behind the sequence's last token can only be one whose result was lost: what it samples is not used.
/// Nor is what a row samples that was planned before the SCHEDULER knew that the sequence is late: those are
/// before the one that asks for the late mask again.
void Grammars::settle(Sequence& s, std::vector<ReadyRow>& rows) {
  std::erase_if(s.rows, [&](const Row& row) {
    if (row.updates > s.updates && !s.late) return false;
    ReadyRow ready{.step = row.step, .slot = row.slot};
    if (row.updates == s.updates && s.ready_at != takes_) {
      s.ready_at = takes_;
      ready.key = s.follower->key;
      ready.places = static_cast<std::size_t>(std::max(1, row.places));
      ready.free = static_cast<std::size_t>(std::max(0, s.gated_from - s.tokens));
      if (s.busy) {
        ready.mask = ReadyRow::Mask::late;
      } else {
        s.late = false;
        ready.follower = s.follower;
        ready.mask = s.made_for == s.tokens ? ReadyRow::Mask::made : ReadyRow::Mask::make;
        if (ready.mask == ReadyRow::Mask::make) {
          s.busy = true;
          s.made_for = -1;
          s.follower->tokens = std::exchange(s.new_tokens, {});
          s.follower->drafts = s.drafts;
          s.follower->drafts.resize(std::min(s.drafts.size(), ready.places - 1));
          s.follower->most_forced = static_cast<std::size_t>(std::max(0, row.forced));
        }
      }
    }
    rows.push_back(std::move(ready));
    return true;
  });
}

}  // namespace troupe
