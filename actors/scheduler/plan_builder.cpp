#include "actors/scheduler/plan_builder.h"

#include <algorithm>

#include "actors/scheduler/media_work.h"

namespace troupe {
namespace {

template <class T>
constexpr std::size_t padded(std::size_t count) {
  return (count * sizeof(T) + wire::kAlignment - 1) / wire::kAlignment * wire::kAlignment;
}

/// Bytes of one token's logprobs in a result.
std::size_t score_bytes(std::int32_t top) {
  return sizeof(wire::TokenLogprobs) + static_cast<std::size_t>(top) * sizeof(wire::Logprob);
}

/// Bytes that a sampled token takes in a result at most.
std::size_t sampled_bytes(const ScheduledSequence& s) {
  return sizeof(wire::ResultRow) + static_cast<std::size_t>(1 + s.proposes) * sizeof(TokenId) +
         (s.sampling.logprobs < 0 ? 0 : score_bytes(s.sampling.logprobs)) +
         (s.embedding_width == 0 ? 0
                                 : sizeof(wire::Embedding) + wire::kAlignment +
                                       static_cast<std::size_t>(s.embedding_width) * sizeof(float));
}

}  // namespace

void PlanBuilder::begin(std::uint32_t epoch, std::int32_t max_tokens, std::int32_t max_sampled) {
  sampled_left_ = max_sampled;
  writer_.begin(epoch);
  ids_left_ = max_ids_;
  tokens_left_ = max_tokens;
  bytes_left_ = wire::kMaxRecordBytes - sizeof(wire::StepPlan) -
                wire::kAlignment;  // padding behind an odd count of SlotRefs
  result_left_ = wire::kMaxResultBytes - sizeof(wire::StepResult) - 5 * wire::kAlignment;
  finished_.clear();
  started_.clear();
  runs_.clear();
  block_runs_.clear();
  rows_.clear();
}

bool PlanBuilder::take(std::size_t bytes) {
  if (bytes > bytes_left_) return false;
  bytes_left_ -= bytes;
  return true;
}

bool PlanBuilder::finished(SlotRef slot) {
  if (!take(sizeof(SlotRef))) return false;
  finished_.push_back(slot);
  return true;
}

bool PlanBuilder::start(const ScheduledSequence& s) {
  const std::span<const TokenId> prediction = s.prediction();
  if (!take(sizeof(wire::StartSequence) + padded<TokenId>(s.stop_ids.list().size()) +
            padded<wire::LogitBias>(s.logit_bias.size()) + padded<TokenId>(prediction.size()) +
            announcement_bytes(s))) {
    return false;
  }
  wire::StartSequence start{s.slot,
                            s.key,
                            s.prompt_tokens,
                            static_cast<std::int32_t>(s.tokens.size()),
                            s.drafts ? s.max_length : 0,
                            s.proposes,
                            s.sampling};
  start.stop_ids = writer_.array(s.stop_ids.list());
  start.logit_bias = writer_.array(s.logit_bias);
  start.prediction = writer_.array(prediction);
  started_.push_back(start);
  return true;
}

std::int32_t PlanBuilder::ids(SlotRef slot, std::int32_t position, std::span<const TokenId> ids) {
  const std::size_t fixed = sizeof(wire::TokenRun) + wire::kAlignment;
  if (bytes_left_ <= fixed) return 0;
  const std::size_t count = std::min({ids.size(), ids_left_, (bytes_left_ - fixed) / sizeof(TokenId)});
  if (count == 0 || !take(sizeof(wire::TokenRun) + padded<TokenId>(count))) return 0;
  ids_left_ -= count;
  runs_.push_back({slot, position, 0, writer_.array(ids.first(count))});
  return static_cast<std::int32_t>(count);
}

bool PlanBuilder::blocks(SlotRef slot, std::int32_t first, std::span<const BlockId> blocks) {
  if (blocks.empty()) return true;
  if (!take(sizeof(wire::BlockRun) + padded<BlockId>(blocks.size()))) return false;
  block_runs_.push_back({slot, first, 0, writer_.array(blocks)});
  return true;
}

std::int32_t PlanBuilder::fitting(const ScheduledSequence& s, std::int32_t tokens) const {
  const std::size_t sampled = sampled_bytes(s);
  // Positions that score the prompt token after them. A row that ends with them does not sample.
  const std::int32_t unscored =
      s.sampling.prompt_logprobs < 0 ? 0 : std::max(0, s.prompt_tokens - 1 - s.planned);
  if (unscored == 0) return sampled <= result_left_ ? tokens : 0;
  const std::size_t each = score_bytes(s.sampling.prompt_logprobs);
  if (tokens > unscored && static_cast<std::size_t>(unscored) * each + sampled <= result_left_) return tokens;
  return static_cast<std::int32_t>(
      std::min(static_cast<std::size_t>(std::min(tokens, unscored)), result_left_ / each));
}

std::int32_t PlanBuilder::fitting_from_last(const ScheduledSequence& s, std::int32_t tokens) const {
  const std::size_t fitted = result_left_ / sampled_bytes(s);
  return static_cast<std::int32_t>(std::min(
      {static_cast<std::size_t>(tokens), fitted, static_cast<std::size_t>(std::max(0, sampled_left_))}));
}

bool PlanBuilder::row(const ScheduledSequence& s, std::int32_t tokens, std::uint32_t flags) {
  if (!take(sizeof(wire::PlanRow))) return false;
  tokens_left_ -= tokens;
  const std::int32_t yields = (flags & wire::kFromLast) != 0 ? tokens : (flags & wire::kSamples) != 0 ? 1 : 0;
  sampled_left_ -= yields;
  result_left_ -= static_cast<std::size_t>(yields) * sampled_bytes(s);
  if (s.sampling.prompt_logprobs >= 0) {
    const std::int32_t scored = std::clamp(s.prompt_tokens - 1 - s.planned, 0, tokens);
    result_left_ -= static_cast<std::size_t>(scored) * score_bytes(s.sampling.prompt_logprobs);
  }
  rows_.push_back({s.slot, s.planned, tokens, flags, 0});
  return true;
}

std::span<const std::byte> PlanBuilder::finish(std::uint64_t step, std::uint64_t after_cache_command) {
  const auto finished = writer_.array(finished_);
  const auto started = writer_.array(started_);
  const auto runs = writer_.array(runs_);
  const auto block_runs = writer_.array(block_runs_);
  const auto rows = writer_.array(rows_);
  wire::StepPlan& plan = writer_.record();
  plan.step = step;
  plan.after_cache_command = after_cache_command;
  plan.finished = finished;
  plan.started = started;
  plan.tokens = runs;
  plan.blocks = block_runs;
  plan.rows = rows;
  return writer_.finish();
}

}  // namespace troupe
