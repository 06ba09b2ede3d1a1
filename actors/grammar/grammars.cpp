#include "actors/grammar/grammars.h"

#include <algorithm>
#include <utility>

namespace troupe {

std::uint64_t Grammars::add(std::shared_ptr<const grammar::ConstraintSpec> spec) {
  specs_.emplace(next_, std::move(spec));
  return next_++;
}

void Grammars::release(std::uint64_t grammar) { specs_.erase(grammar); }

const std::vector<ReadyRow>& Grammars::take(const GrammarStep& news) {
  ++takes_;
  ready_.clear();
  if (news.epoch > epoch_) {
    epoch_ = news.epoch;
    for (auto& [key, sequence] : sequences_) sequence.rows.clear();
  }
  for (const GrammarStart& started : news.starts) start(started);
  for (const GrammarTokens& part : news.sequences) {
    const auto it = sequences_.find(part.key);
    if (it == sequences_.end()) continue;
    for (std::int32_t i = part.first; i < part.first + part.count; ++i) {
      it->second.constraint.accept(news.tokens[static_cast<std::size_t>(i)]);
    }
  }
  for (const RequestKey& key : news.ends) end(key);
  for (const GrammarTokens& part : news.sequences) {
    if (const auto it = sequences_.find(part.key); it != sequences_.end()) settle(it->second);
  }
  if (news.epoch == epoch_) {
    for (const MaskAsk& row : news.rows) ask(row, news.step);
  }
  return ready_;
}

std::size_t Grammars::waiting() const {
  std::size_t rows = 0;
  for (const auto& [key, sequence] : sequences_) rows += sequence.rows.size();
  return rows;
}

void Grammars::start(const GrammarStart& start) {
  const auto spec = specs_.find(start.grammar);
  if (spec == specs_.end()) return;  // the request has ended before its sequence began
  sequences_.try_emplace(start.key, Sequence{grammar::Constraint(spec->second), start.grammar, {}, 0});
}

void Grammars::end(const RequestKey& key) {
  const auto it = sequences_.find(key);
  if (it == sequences_.end()) return;
  for (const Row& row : it->second.rows) ready_.push_back({row.step, row.slot, nullptr});
  sequences_.erase(it);
}

void Grammars::ask(const MaskAsk& ask, std::uint64_t step) {
  const auto it = sequences_.find(ask.key);
  if (it == sequences_.end()) {
    ready_.push_back({step, ask.slot, nullptr});
    return;
  }
  it->second.rows.push_back({step, ask.slot, ask.output_tokens});
  settle(it->second);
}

/// Makes the rows ready whose tokens have come. A row behind the sequence's last token can only be one whose
/// result was lost: what it samples is not used.
void Grammars::settle(Sequence& sequence) {
  std::erase_if(sequence.rows, [&](const Row& row) {
    if (row.output_tokens > sequence.constraint.tokens()) return false;
    const bool next = row.output_tokens == sequence.constraint.tokens() && sequence.ready_at != takes_;
    if (next) sequence.ready_at = takes_;
    ready_.push_back({row.step, row.slot, next ? &sequence.constraint : nullptr, sequence.grammar});
    return true;
  });
}

}  // namespace troupe
