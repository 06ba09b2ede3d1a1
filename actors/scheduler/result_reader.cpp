#include "actors/scheduler/result_reader.h"

#include <algorithm>

namespace troupe {

Committed ResultReader::read(std::span<const std::byte> bytes, std::uint32_t epoch,
                             const StepsInFlight& steps, std::int32_t vocab_size) {
  const Committed verdict = judge(bytes, epoch, steps, vocab_size);
  if (verdict == Committed::applied) list_scores(steps.oldest());
  return verdict;
}

Committed ResultReader::judge(std::span<const std::byte> bytes, std::uint32_t epoch,
                              const StepsInFlight& steps, std::int32_t vocab_size) {
  if (!wire::RecordView::open(bytes, view_)) return Committed::malformed;
  if (view_.header().epoch != epoch || epoch == 0) return Committed::stale;
  const wire::StepResult* result = view_.as<wire::StepResult>();
  if (result == nullptr) return Committed::malformed;
  const std::uint64_t oldest = steps.oldest_number();
  if (result->step < oldest) return Committed::stale;
  if (steps.empty() || result->step != oldest) return Committed::malformed;
  if (!agrees(*result, steps.oldest(), vocab_size)) return Committed::malformed;
  seconds_ = std::max(0.0, 1e-9 * static_cast<double>(result->finished_ns - result->started_ns));
  pause_s_ = oldest == 1 ? 0 : std::max(0.0, 1e-9 * static_cast<double>(result->started_ns - finished_ns_));
  finished_ns_ = result->finished_ns;
  return Committed::applied;
}

bool ResultReader::agrees(const wire::StepResult& result, const PlannedStep& step, std::int32_t vocab_size) {
  if (!view_.holds(result.rows) || !view_.holds(result.tokens) || !view_.holds(result.logprobs) ||
      !view_.holds(result.embeddings))
    return false;
  rows_ = view_.array(result.rows);
  tokens_ = view_.array(result.tokens);
  scores_ = view_.array(result.logprobs);
  embeddings_ = view_.array(result.embeddings);
  std::size_t at = 0;
  for (const PlannedRow& planned : step.rows) {
    if (!planned.samples) continue;
    if (at == rows_.size()) return false;
    const wire::ResultRow& row = rows_[at++];
    if (row.slot != planned.slot) return false;
    if (row.error != wire::RowError::none) {
      if (row.error > wire::RowError::no_such_slot) return false;
      continue;
    }
    const std::int32_t least = planned.from_last ? 0 : 1,
                       most = planned.from_last ? planned.end - planned.begin : 1;
    if (row.count < least || row.count > most || row.drafts < std::max(0, row.count - 1) ||
        row.drafts >= most || row.predicted > 1 || row.proposed < 0 || row.proposed > planned.proposes)
      return false;
    if (row.first < 0 || static_cast<std::size_t>(row.first) > tokens_.size() ||
        static_cast<std::size_t>(row.count + row.proposed) >
            tokens_.size() - static_cast<std::size_t>(row.first))
      return false;
    const auto in_vocabulary = [vocab_size](TokenId id) { return id >= 0 && id < vocab_size; };
    if (!std::ranges::all_of(tokens(row), in_vocabulary) ||
        !std::ranges::all_of(proposed(row), in_vocabulary))
      return false;
  }
  if (at != rows_.size()) return false;
  if (!std::ranges::all_of(embeddings_,
                           [this](const wire::Embedding& one) { return view_.holds(one.values); }))
    return false;
  return std::all_of(scores_.begin(), scores_.end(),
                     [this](const wire::TokenLogprobs& score) { return view_.holds(score.top); });
}

/// Lists the logprobs of each row of the step, in the order of the result. Those of other slots are dropped.
void ResultReader::list_scores(const PlannedStep& step) {
  score_head_.assign(scores_.empty() ? 0 : step.rows.size(), kNoScore);
  if (scores_.empty()) return;
  score_next_.resize(scores_.size());
  rows_of_slots_.clear();
  for (std::uint32_t i = 0; i < step.rows.size(); ++i) {
    const std::uint32_t slot = step.rows[i].slot.slot;
    if (slot >= rows_of_slots_.size()) rows_of_slots_.resize(slot + 1, kNoScore);
    rows_of_slots_[slot] = i;
  }
  for (std::uint32_t i = static_cast<std::uint32_t>(scores_.size()); i-- > 0;) {
    const SlotRef slot = scores_[i].slot;
    const std::uint32_t row = slot.slot < rows_of_slots_.size() ? rows_of_slots_[slot.slot] : kNoScore;
    if (row == kNoScore || step.rows[row].slot != slot) continue;
    score_next_[i] = score_head_[row];
    score_head_[row] = i;
  }
}

void ResultReader::pass_scores(std::size_t row, ScheduledSequence& s, StepTokens& step) const {
  for (std::uint32_t score = first_score(row, s); score != kNoScore; score = score_next_[score]) {
    const wire::TokenLogprobs& from = scores_[score];
    if (s.late && from.position >= s.prompt_tokens) continue;
    if (from.position >= static_cast<std::int32_t>(s.tokens.size())) continue;
    if (from.position < s.prompt_tokens) {
      if (from.position < s.scored) continue;
      s.scored = from.position + 1;
    }
    const std::span<const wire::Logprob> top = view_.array(from.top);
    step.scores.push_back({from.position, from.chosen, static_cast<std::int32_t>(step.tops.size()),
                           static_cast<std::int32_t>(top.size())});
    step.tops.insert(step.tops.end(), top.begin(), top.end());
  }
}

bool ResultReader::pass_embedding(const ScheduledSequence& s, SequenceTokens& tokens,
                                  StepTokens& step) const {
  if (s.sampling.embeds == 0) return true;
  const auto found = std::ranges::find(embeddings_, s.slot, &wire::Embedding::slot);
  if (found == embeddings_.end() || s.embedding_width == 0) return false;
  const std::span<const float> values = view_.array(found->values);
  if (values.size() != static_cast<std::size_t>(s.embedding_width)) return false;
  tokens.first_embedding = static_cast<std::int32_t>(step.embeddings.size());
  tokens.embedding = s.embedding_width;
  step.embeddings.insert(step.embeddings.end(), values.begin(), values.end());
  return true;
}

const char* sentence(wire::RowError error) {
  switch (error) {
    case wire::RowError::not_finite:
      return "The model's output was not a finite number; the answer ends here.";
    case wire::RowError::no_such_slot: return "The worker does not know this sequence; the answer ends here.";
    case wire::RowError::none: break;
  }
  return "";
}

}  // namespace troupe
