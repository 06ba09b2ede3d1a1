#include "model/plan_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace troupe::model {
namespace {

std::string name(SlotRef ref) {
  return "slot " + std::to_string(ref.slot) + " generation " + std::to_string(ref.generation);
}

Status wrong(SlotRef ref, const std::string& what) { return invalid(name(ref) + ": " + what); }

// Bytes that one token's logprobs take in a result.
std::int64_t logprob_bytes(std::int32_t top) {
  return static_cast<std::int64_t>(sizeof(wire::TokenLogprobs) +
                                   static_cast<std::size_t>(top) * sizeof(wire::Logprob));
}

// Most bytes that the arrays of a result lose to alignment.
constexpr std::size_t kAlignmentLoss = 5 * wire::kAlignment;

// False for NaN.
bool in(float value, float low, float high) { return value >= low && value <= high; }

Status check_sampling(SlotRef ref, const wire::Sampling& s, const wire::Capacity& capacity) {
  constexpr float kAny = 1e30f;
  if (!in(s.temperature, 0, kAny)) return wrong(ref, "temperature is not a number from 0 on");
  if (!(s.top_p > 0) || !in(s.top_p, 0, 1)) return wrong(ref, "top_p is not in (0, 1]");
  if (!in(s.min_p, 0, 1)) return wrong(ref, "min_p is not in [0, 1]");
  if (s.top_k < 0) return wrong(ref, "top_k is negative");
  if (!(s.repetition_penalty > 0) || !in(s.repetition_penalty, 0, kAny)) {
    return wrong(ref, "repetition_penalty is not a positive number");
  }
  if (!in(s.presence_penalty, -kAny, kAny)) return wrong(ref, "presence_penalty is not a number");
  if (!in(s.frequency_penalty, -kAny, kAny)) return wrong(ref, "frequency_penalty is not a number");
  if (s.min_tokens < 0) return wrong(ref, "min_tokens is negative");
  if (s.embeds > (capacity.embedding_width > 0 ? 1u : 0u)) return wrong(ref, "embeddings are not offered");
  for (const std::int32_t count : {s.logprobs, s.prompt_logprobs}) {
    if (count < -1 || count > capacity.max_logprobs) {
      return wrong(ref,
                   std::to_string(count) + " logprobs; at most " + std::to_string(capacity.max_logprobs));
    }
  }
  return {};
}

}  // namespace

PlanCheck::PlanCheck(const wire::Capacity& capacity)
    : capacity_(capacity),
      slots_(static_cast<std::size_t>(capacity.max_slots)),
      before_(slots_.size()),
      touched_(static_cast<std::size_t>(capacity.kv_blocks)),
      swap_touched_(static_cast<std::size_t>(capacity.swap_blocks)) {}

void PlanCheck::reset() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  step_ = command_ = 0;
}

PlanCheck::Slot* PlanCheck::find(SlotRef ref) {
  if (!in_range(ref)) return nullptr;
  Slot& slot = slots_[ref.slot];
  return slot.live && slot.generation == ref.generation ? &slot : nullptr;
}

Status PlanCheck::admit(const wire::RecordView& record, const wire::StepPlan& plan) {
  if (plan.step != step_ + 1) {
    return invalid("step " + std::to_string(plan.step) + " follows step " + std::to_string(step_));
  }
  if (!record.holds(plan.finished) || !record.holds(plan.started) || !record.holds(plan.tokens) ||
      !record.holds(plan.blocks) || !record.holds(plan.rows)) {
    return invalid("step " + std::to_string(plan.step) + " names an array outside its record");
  }
  before_ = slots_;
  if (Status s = apply(record, plan); !s.ok()) {
    slots_ = before_;
    s.message = "step " + std::to_string(plan.step) + ", " + s.message;
    return s;
  }
  step_ = plan.step;
  return {};
}

Status PlanCheck::apply(const wire::RecordView& record, const wire::StepPlan& plan) {
  for (const SlotRef ref : record.array(plan.finished)) {
    if (!in_range(ref)) return wrong(ref, "no such slot");
    if (Slot* slot = find(ref)) slot->live = false;
  }
  for (const wire::StartSequence& s : record.array(plan.started)) {
    if (Status status = start(record, s); !status.ok()) return status;
  }
  for (const wire::TokenRun& run : record.array(plan.tokens)) {
    if (Status status = take_ids(record, run); !status.ok()) return status;
  }
  for (const wire::BlockRun& run : record.array(plan.blocks)) {
    if (Status status = take_blocks(record, run); !status.ok()) return status;
  }
  StepSize size{.result_bytes = sizeof(wire::StepResult)};
  for (Slot& slot : slots_) slot.has_row = slot.has_gated_row = false;
  for (const wire::PlanRow& row : record.array(plan.rows)) {
    if (Status status = take_row(row, size); !status.ok()) return status;
    if (size.result_bytes > static_cast<std::int64_t>(wire::kMaxResultBytes - kAlignmentLoss))
      return wrong(row.slot, "the logprobs asked for do not fit one result");
  }
  return {};
}

Status PlanCheck::start(const wire::RecordView& record, const wire::StartSequence& start) {
  if (!in_range(start.slot)) return wrong(start.slot, "no such slot");
  Slot& slot = slots_[start.slot.slot];
  if (slot.live)
    return wrong(start.slot, "starts, but generation " + std::to_string(slot.generation) + " lives there");
  if (start.prompt_tokens < 1 || start.known_tokens < start.prompt_tokens ||
      start.known_tokens > capacity_.max_model_len) {
    return wrong(start.slot, "a prompt of " + std::to_string(start.prompt_tokens) + " in " +
                                 std::to_string(start.known_tokens) + " tokens; at most " +
                                 std::to_string(capacity_.max_model_len));
  }
  if (Status s = check_sampling(start.slot, start.sampling, capacity_); !s.ok()) return s;
  if (!record.holds(start.stop_ids) || !record.holds(start.logit_bias) ||
      start.stop_ids.count * sizeof(TokenId) + start.logit_bias.count * sizeof(wire::LogitBias) >
          kMaxSamplingBytes) {
    return wrong(start.slot, "its stop ids and logit biases do not fit");
  }
  for (const TokenId id : record.array(start.stop_ids)) {
    if (id < 0 || id >= capacity_.vocab_size) return wrong(start.slot, "no stop id " + std::to_string(id));
  }
  for (const wire::LogitBias& bias : record.array(start.logit_bias)) {
    if (bias.token < 0 || bias.token >= capacity_.vocab_size || !std::isfinite(bias.bias)) {
      return wrong(start.slot, "no logit bias for token " + std::to_string(bias.token));
    }
  }
  if (!record.holds(start.prediction) || start.prediction.count > wire::kMostPredicted) {
    return wrong(start.slot, "its prediction does not fit");
  }
  for (const TokenId id : record.array(start.prediction)) {
    if (id < 0 || id >= capacity_.vocab_size)
      return wrong(start.slot, "no token " + std::to_string(id) + " to be predicted");
  }
  if (start.max_tokens != 0 &&
      (start.max_tokens <= start.known_tokens || start.max_tokens > capacity_.max_model_len)) {
    return wrong(start.slot, "at most " + std::to_string(start.max_tokens) + " tokens, of which " +
                                 std::to_string(start.known_tokens) + " are known; positions end at " +
                                 std::to_string(capacity_.max_model_len));
  }
  if (start.proposes < 0 || start.proposes > (start.max_tokens == 0 ? 0 : capacity_.max_proposed)) {
    return wrong(start.slot, "no " + std::to_string(start.proposes) + " draft tokens to say; at most " +
                                 std::to_string(capacity_.max_proposed) + " can be said");
  }
  slot = Slot{.generation = start.slot.generation,
              .live = true,
              .prompt_tokens = start.prompt_tokens,
              .known_tokens = start.known_tokens,
              .max_tokens = start.max_tokens,
              .proposes = start.proposes,
              .logprobs = start.sampling.logprobs,
              .prompt_logprobs = start.sampling.prompt_logprobs,
              .embeds = start.sampling.embeds != 0};
  return {};
}

Status PlanCheck::take_ids(const wire::RecordView& record, const wire::TokenRun& run) {
  if (!in_range(run.slot)) return wrong(run.slot, "no such slot");
  if (!record.holds(run.ids)) return wrong(run.slot, "its token ids lie outside the record");
  Slot* slot = find(run.slot);
  if (slot == nullptr) return {};
  const std::int64_t end = std::int64_t{run.position} + run.ids.count;
  if (run.position != slot->ids || end > slot->known_tokens) {
    return wrong(run.slot, "token ids for [" + std::to_string(run.position) + ", " + std::to_string(end) +
                               "); [" + std::to_string(slot->ids) + ", " +
                               std::to_string(slot->known_tokens) + ") are missing");
  }
  for (const TokenId id : record.array(run.ids)) {
    if (id < 0 || id >= capacity_.vocab_size) {
      return wrong(run.slot, "token id " + std::to_string(id) + " is not below " +
                                 std::to_string(capacity_.vocab_size));
    }
  }
  slot->ids = static_cast<std::int32_t>(end);
  return {};
}

Status PlanCheck::take_blocks(const wire::RecordView& record, const wire::BlockRun& run) {
  if (!in_range(run.slot)) return wrong(run.slot, "no such slot");
  if (!record.holds(run.blocks)) return wrong(run.slot, "its blocks lie outside the record");
  Slot* slot = find(run.slot);
  if (slot == nullptr) return {};
  const std::int64_t end = std::int64_t{run.first} + run.blocks.count;
  const std::int64_t most =
      (std::int64_t{capacity_.max_model_len} + capacity_.block_tokens - 1) / capacity_.block_tokens;
  if (run.first < 0 || run.first > slot->blocks || end > most) {
    return wrong(run.slot, "blocks for entries [" + std::to_string(run.first) + ", " + std::to_string(end) +
                               "); it has " + std::to_string(slot->blocks) + " of " + std::to_string(most));
  }
  for (const BlockId block : record.array(run.blocks)) {
    if (block < 0 || block >= capacity_.kv_blocks)
      return wrong(run.slot, "no block " + std::to_string(block));
  }
  slot->blocks = std::max(slot->blocks, static_cast<std::int32_t>(end));
  return {};
}

Status PlanCheck::take_row(const wire::PlanRow& row, StepSize& size) {
  if (!in_range(row.slot)) return wrong(row.slot, "no such slot");
  if (row.flags & ~std::uint32_t{wire::kSamples | wire::kGated | wire::kAgain | wire::kFromLast}) {
    return wrong(row.slot, "row flags " + std::to_string(row.flags) + " are not offered");
  }
  if (row.flags == wire::kGated) return wrong(row.slot, "a row that does not sample waits for a mask");
  const bool again = (row.flags & wire::kAgain) != 0;
  if (again && (row.flags & wire::kSamples) == 0)
    return wrong(row.slot, "a row that does not sample samples again");
  const bool from_last = (row.flags & wire::kFromLast) != 0;
  if (from_last && ((row.flags & wire::kSamples) == 0 || (again && row.tokens != 1))) {
    return wrong(row.slot, "row flags " + std::to_string(row.flags) +
                               " are not offered together, or not with " + std::to_string(row.tokens) +
                               " tokens");
  }
  if (from_last && (capacity_.max_drafts == 0 || row.tokens > 1 + capacity_.max_drafts)) {
    return wrong(row.slot, std::to_string(row.tokens - 1) + " draft tokens; at most " +
                               std::to_string(capacity_.max_drafts) + " are made");
  }
  if ((row.flags & wire::kGated) != 0 && std::exchange(slots_[row.slot.slot].has_gated_row, true)) {
    return wrong(row.slot, "two rows of one slot wait for masks");
  }
  const std::int64_t end = std::int64_t{row.position} + row.tokens;
  if (row.position < 0 || row.tokens < 1 || end > capacity_.max_model_len) {
    return wrong(row.slot, "a row over [" + std::to_string(row.position) + ", " + std::to_string(end) +
                               "); positions end at " + std::to_string(capacity_.max_model_len));
  }
  size.tokens += row.tokens;
  if (size.tokens > capacity_.max_tokens_per_step) {
    return wrong(row.slot,
                 "more than " + std::to_string(capacity_.max_tokens_per_step) + " tokens in one step");
  }
  const bool samples = (row.flags & wire::kSamples) != 0;
  const std::int64_t yields = !samples ? 0 : from_last ? row.tokens : 1;
  size.sampled += yields;
  if (capacity_.max_drafts > 0 && size.sampled > capacity_.max_sampled) {
    return wrong(row.slot,
                 "more than " + std::to_string(capacity_.max_sampled) + " tokens are sampled in one step");
  }
  if (samples) {  // late rows get a result too
    size.result_bytes += sizeof(wire::ResultRow) + static_cast<std::size_t>(yields) * sizeof(TokenId);
  }
  Slot* slot = find(row.slot);
  if (slot == nullptr) return {};
  if (slot->has_row) return wrong(row.slot, "two rows in one step");
  slot->has_row = true;
  if (from_last) {
    if (Status s = check_from_last(row, *slot); !s.ok()) return s;
    size.result_bytes += slot->proposes * static_cast<std::int64_t>(sizeof(TokenId));
    if (slot->logprobs >= 0) size.result_bytes += yields * logprob_bytes(slot->logprobs);
    return {};
  }
  if (slot->from_last) return wrong(row.slot, "where its last token stands is the worker's to know");
  if (end > slot->ids || end > std::int64_t{slot->blocks} * capacity_.block_tokens) {
    return wrong(row.slot, "a row over [" + std::to_string(row.position) + ", " + std::to_string(end) +
                               "); it has " + std::to_string(slot->ids) + " ids and " +
                               std::to_string(slot->blocks) + " blocks");
  }
  if (again && end >= slot->known_tokens) slot->ids = static_cast<std::int32_t>(end);
  // A device keeps of the ids that it has sampled the last one by slot.
  if (end > slot->known_tokens && row.position < slot->ids - 1) {
    return wrong(row.slot, "a row over [" + std::to_string(row.position) + ", " + std::to_string(end) +
                               ") repeats sampled tokens; only " + std::to_string(slot->ids - 1) + " is new");
  }
  if (samples && (end != slot->ids || end < slot->known_tokens)) {
    return wrong(row.slot, "a row that ends at " + std::to_string(end) + " samples, but " +
                               std::to_string(std::max(slot->ids, slot->known_tokens)) + " tokens are known");
  }
  if (slot->prompt_logprobs >= 0) {
    if (end < slot->prompt_tokens && end >= slot->ids) {
      return wrong(row.slot, "prompt logprobs at " + std::to_string(end) + " without the id there");
    }
    const std::int64_t scored =
        std::clamp<std::int64_t>(slot->prompt_tokens - 1 - row.position, 0, row.tokens);
    size.result_bytes += scored * logprob_bytes(slot->prompt_logprobs);
  }
  if (samples) {
    if (slot->embeds && end == slot->prompt_tokens) {
      size.result_bytes += static_cast<std::int64_t>(
          sizeof(wire::Embedding) + static_cast<std::size_t>(capacity_.embedding_width) * sizeof(float) +
          wire::kAlignment);
    }
    slot->ids = static_cast<std::int32_t>(end) + 1;
    size.result_bytes += slot->proposes * static_cast<std::int64_t>(sizeof(TokenId));
    if (slot->logprobs >= 0) size.result_bytes += logprob_bytes(slot->logprobs);
  }
  return {};
}

Status PlanCheck::check_from_last(const wire::PlanRow& row, Slot& slot) const {
  const std::int64_t end = std::int64_t{row.position} + row.tokens;
  if (slot.ids <= slot.known_tokens || slot.max_tokens == 0) {
    return wrong(row.slot, "a row from its last token, but it has sampled none");
  }
  const bool again = (row.flags & wire::kAgain) != 0;
  if ((again || (row.flags & wire::kGated) != 0) && slot.proposes == 0) {
    return wrong(row.slot, "a row from its last token with flags " + std::to_string(row.flags) +
                               ", but its results say no draft tokens");
  }
  if (row.position < slot.known_tokens - (again ? 1 : 0) || row.position >= slot.ids ||
      end >= slot.max_tokens || end > std::int64_t{slot.blocks} * capacity_.block_tokens) {
    return wrong(row.slot, "a row up to [" + std::to_string(row.position) + ", " + std::to_string(end) +
                               "); it has at most " + std::to_string(slot.ids) + " of " +
                               std::to_string(slot.max_tokens) + " ids, and " + std::to_string(slot.blocks) +
                               " blocks");
  }
  slot.from_last = true;
  slot.ids = std::max(again ? 0 : slot.ids, static_cast<std::int32_t>(end) + 1);
  return {};
}

Status PlanCheck::admit(const wire::RecordView& record, const wire::CacheCommand& command) {
  const std::string where = "cache command " + std::to_string(command.id);
  if (command.id != command_ + 1) return invalid(where + " follows " + std::to_string(command_));
  if (command.after >= command.id) return invalid(where + " waits for " + std::to_string(command.after));
  if (command.op < wire::CacheOp::copy_blocks || command.op > wire::CacheOp::peer_in) {
    return invalid(where + ": unknown operation");
  }
  if (!record.holds(command.copies)) return invalid(where + " names an array outside its record");
  const bool out = command.op == wire::CacheOp::swap_out, in = command.op == wire::CacheOp::swap_in;
  const bool from_peer = command.op == wire::CacheOp::peer_in;  // how many blocks it has is not known here
  if ((out || in) && capacity_.swap_blocks == 0) return invalid(where + ": there is no swap space");
  const auto blocks = [this](bool swap) { return swap ? capacity_.swap_blocks : capacity_.kv_blocks; };
  const auto name = [](bool swap) { return std::string(swap ? "swap block " : "block "); };
  const std::span<const wire::BlockCopy> copies = record.array(command.copies);
  std::vector<char>& touched = out ? swap_touched_ : touched_;
  Status status;
  for (const wire::BlockCopy& copy : copies) {
    const bool from_exists = copy.from >= 0 && (from_peer || copy.from < blocks(in));
    if (!from_exists || copy.to < 0 || copy.to >= blocks(out)) {
      status = invalid(where + ": no " + name(from_exists ? out : in) +
                       std::to_string(from_exists ? copy.to : copy.from));
      break;
    }
    if (touched[static_cast<std::size_t>(copy.to)]++ != 0) {
      status = invalid(where + ": " + name(out) + std::to_string(copy.to) + " is a target twice");
      break;
    }
  }
  if (!out && !in && !from_peer) {
    for (const wire::BlockCopy& copy : copies) {
      if (status.ok() && touched_[static_cast<std::size_t>(copy.from)] != 0) {
        status = invalid(where + ": block " + std::to_string(copy.from) + " is both source and target");
      }
    }
  }
  for (const wire::BlockCopy& copy : copies) {
    if (copy.to >= 0 && copy.to < blocks(out)) touched[static_cast<std::size_t>(copy.to)] = 0;
  }
  if (status.ok()) command_ = command.id;
  return status;
}

}  // namespace troupe::model
