// Submitting and cancelling, attaching and losing the worker.
#include "actors/scheduler/scheduler.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "actors/scheduler/resumption_check.h"
#include "actors/scheduler/sampling_check.h"
#include "base/check.h"
#include "base/counted.h"

namespace troupe {
namespace {

/// Session hosts are few; the bound keeps a wrong number from growing StepOutput.
constexpr std::uint32_t kMaxHosts = 1024;
/// At most as many slots as a plan can have rows.
constexpr std::int32_t kMaxSlots = 4096;
constexpr std::int32_t kMaxStepsInFlight = 8;
/// Without an option, prompts of up to so many tokens are short however little the model takes, and so are
/// those of which a step holds this many: it takes several, and none is held up.
constexpr std::int32_t kLeastLongPrompt = 64;
constexpr std::int32_t kShortPromptsOfAStep = 4;
/// Without an option, the share of a step that prompts may take beside decodes, in tokens and in time, and the
/// least tokens: steps of fewer take hardly less time.
constexpr double kPrefillShare = 0.1, kPrefillTimeShare = 1.0 / 3;
constexpr std::int32_t kLeastPromptTokens = 512;
constexpr const char* kPoisoned =
    "This request was being computed when two workers died one after the other; it is not tried again.";

std::int32_t limited(int option, std::int32_t capacity) {
  return std::max(0, option > 0 ? std::min(option, capacity) : capacity);
}

bool in_vocabulary(TokenId token, std::int32_t size) { return token >= 0 && token < size; }

}  // namespace

void StepOutput::clear() {
  for (HostTokens& host : hosts) {
    host.step.sequences.clear();
    host.step.tokens.clear();
    host.step.scores.clear();
    host.step.tops.clear();
  }
  stats = {};
}

Scheduler::Scheduler(const config::SchedulerOptions& options, const PrefixCaching& caching,
                     std::size_t max_tokens_in_plan)
    : options_(options),
      caching_(caching),
      hasher_(caching.key),
      builder_(max_tokens_in_plan),
      queue_(table_) {}

void Scheduler::attach(std::uint32_t epoch, const wire::Capacity& capacity, StepOutput& out) {
  TROUPE_CHECK(epoch != 0 && epoch_ == 0);
  out.clear();
  epoch_ = epoch;
  grammar_updates_.begin_epoch(epoch);
  block_tokens_ = std::max(1, capacity.block_tokens);
  total_blocks_ = std::max(0, capacity.kv_blocks);
  prompt_blocks_ = static_cast<std::int32_t>(options_.kv_cache_ratio * total_blocks_);
  vocab_size_ = capacity.vocab_size;
  max_logprobs_ = capacity.max_logprobs;
  budget_ = limited(options_.max_num_batched_tokens, capacity.max_tokens_per_step);
  const double share = options_.min_prefill_share > 0 ? options_.min_prefill_share : kPrefillShare;
  least_prompt_tokens_ = std::max(options_.min_prefill_share > 0 ? 1 : kLeastPromptTokens,
                                  static_cast<std::int32_t>(share * budget_));
  least_prompt_share_ = options_.min_prefill_share > 0 ? options_.min_prefill_share : kPrefillTimeShare;
  const std::int64_t cached = std::int64_t{total_blocks_} * block_tokens_;
  max_length_ = static_cast<std::int32_t>(
      std::min<std::int64_t>(limited(options_.max_model_len, capacity.max_model_len), cached));
  long_prompt_ = options_.long_prefill_token_threshold > 0
                     ? options_.long_prefill_token_threshold
                     : std::max({kLeastLongPrompt, max_length_ / 25, budget_ / kShortPromptsOfAStep});
  slots_.reset(std::min({limited(options_.max_num_seqs, capacity.max_slots), budget_, kMaxSlots}));
  steps_.resize(static_cast<std::size_t>(std::clamp(capacity.max_steps_in_flight, 1, kMaxStepsInFlight)));
  first_step_ = in_flight_ = 0;
  next_step_ = 1;
  last_command_ = 0;
  swaps_ = capacity.swap_blocks > 0;
  prefill_speed_.forget();
  time_.attach(1e-3 * options_.max_prefill_step_ms, budget_, capacity.weight_bytes);

  for (std::uint32_t i = queue_.head(), next = kNoSequence; i != kNoSequence; i = next) {
    next = queue_.after(i);
    ScheduledSequence& s = table_[i];
    s.max_length = std::min(s.max_length, max_length_);
    if (s.expected < s.max_length) continue;
    queue_.remove(i);
    fail(i, Finish::aborted, "The model's worker was restarted with too little room for this request.", out);
  }
}

void Scheduler::detach(Orphans orphans, const std::string& why, StepOutput& out) {
  out.clear();
  if (epoch_ == 0) return;
  epoch_ = 0;
  in_flight_ = 0;
  admissions_open_ = ending_ = 0;
  running_.clear();
  fetching_.clear();
  finished_.clear();
  releases_.clear();
  publishes_.clear();
  published_hashes_.clear();
  withdrawals_.clear();
  groups_.forget_leases();
  int in_flight_sequences = 0;  // that the worker may have been running
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    in_flight_sequences += table_[i].live && table_[i].plans_out > 0 ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    ScheduledSequence& s = table_[i];
    if (!s.live) continue;
    const bool was_waiting = s.state == SequenceState::waiting;
    const bool in_flight = s.plans_out > 0;
    const bool poisonous = in_flight && s.isolated && in_flight_sequences == 1;
    s.ask_open = s.admitting = s.leased = false;
    s.plans_out = 0;
    if (s.state == SequenceState::ending) {
      forget(i);
    } else if (orphans == Orphans::fail || poisonous) {
      if (was_waiting) queue_.remove(i);
      fail(i, poisonous ? Finish::poisoned : Finish::aborted, poisonous ? kPoisoned : why, out);
    } else {
      if (in_flight) suspect(s);
      s.life_tokens = 0;
      rewind(s);
      if (!was_waiting) queue_.insert(i);
    }
  }
}

/// A worker was lost with a plan in flight for it.
void Scheduler::suspect(ScheduledSequence& s) {
  ++s.losses;
  ++s.short_lives;
  s.isolated = s.losses > 1 || !s.proven || s.short_lives >= kMaxShortLives;
  isolates_ |= s.isolated;
}

Status Scheduler::check(const SequenceSpec& spec, const SequenceSpec& prompt, std::uint32_t attempt) const {
  const std::int64_t length = static_cast<std::int64_t>(prompt.prompt.size());
  if (spec.key == RequestKey{} || table_.find(spec.key) != kNoSequence) {
    return invalid("The sequence's key is zero or in use already.", "key");
  }
  if (spec.host >= kMaxHosts) {
    return invalid(
        "host is " + std::to_string(spec.host) + "; it must be below " + std::to_string(kMaxHosts) + ".",
        "host");
  }
  if (length == 0) return invalid("The prompt is empty; at least one token is needed.", "prompt", "empty");
  if (spec.prompt_tokens != length) {
    return invalid("prompt_tokens is " + std::to_string(spec.prompt_tokens) + "; it must be " + std::to_string(length) +
                       ", the number of ids given.",
                   "prompt_tokens");
  }
  if (spec.max_output_tokens < 1) {
    return invalid("max_tokens is " + std::to_string(spec.max_output_tokens) + "; it must be at least 1.",
                   "max_tokens", "out_of_range");
  }
  if (length >= max_length_) {
    return invalid("The prompt has " + counted(length, "token") + ", but a sequence has room for " +
                       std::to_string(max_length_) + " and the answer needs at least one of them.",
                   "prompt", "context_length_exceeded");
  }
  if (spec.gated_from < 0) {
    return invalid("gated_from is " + std::to_string(spec.gated_from) + "; it must be at least 0.",
                   "gated_from");
  }
  if (Status status = check_sampling(spec, vocab_size_, max_logprobs_); !status.ok()) return status;
  if (Status status = check_resumption(spec, attempt, vocab_size_, max_length_); !status.ok()) return status;
  for (const TokenId token : spec.prompt) {
    if (in_vocabulary(token, vocab_size_)) continue;
    return invalid("The prompt holds token " + std::to_string(token) + "; ids are 0 to " +
                       std::to_string(vocab_size_ - 1) + ".",
                   "prompt", "out_of_range");
  }
  return {};
}

Status Scheduler::submit(Submit& request, std::uint32_t front) {
  std::vector<SequenceSpec>& specs = request.sequences;
  if (vocab_size_ == 0) return failure(Code::unavailable, "No worker is ready yet; try again shortly.");
  // For each sequence the one whose prompt it runs: itself, or an earlier one without a parent.
  std::vector<std::size_t> origin(specs.size());
  std::int64_t tokens = 0;
  std::unordered_map<RequestKey, std::size_t> places;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    origin[i] = i;
    if (specs[i].parent != RequestKey{}) {
      const auto parent = places.find(specs[i].parent);
      if (parent == places.end() || origin[parent->second] != parent->second) {
        return invalid("A choice names a parent that does not stand before it.", "parent");
      }
      origin[i] = parent->second;
    }
    if (!places.emplace(specs[i].key, i).second) {
      return invalid("Two sequences of one request have the same key.", "key");
    }
    Status status = check(specs[i], specs[origin[i]], request.attempt);
    if (!status.ok()) return status;
    tokens += static_cast<std::int64_t>(specs[i].prompt.size());
  }
  if (request.attempt == 0) {  // one that goes on was let in before
    if (Status status = check_room(static_cast<std::int64_t>(specs.size()), tokens); !status.ok()) return status;
  }

  std::vector<std::uint32_t> groups(specs.size(), kNoGroup);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (origin[i] == i) continue;
    std::uint32_t& group = groups[origin[i]];
    if (group == kNoGroup) group = groups_.create();
    groups[i] = group;
  }
  std::vector<KnownTokens::Given> prompts(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    prompts[i] = origin[i] == i ? std::make_shared<const std::vector<TokenId>>(std::move(specs[i].prompt)) : prompts[origin[i]];
    enqueue(specs[i], prompts[i], groups[i], request, front);
  }
  return {};
}

/// Refuses a request for which the queue has no room. Of one that could not even wait in an empty queue "try again later"
/// would be said for ever. A bound of 0 lets nothing wait behind another request, and is none for the size of one.
Status Scheduler::check_room(std::int64_t sequences, std::int64_t tokens) const {
  if (options_.max_queued_tokens > 0 && tokens > options_.max_queued_tokens) {
    return invalid("The request has " + counted(tokens, "prompt token") + "; at most " +
                       std::to_string(options_.max_queued_tokens) + " may wait (--max-queued-tokens).",
                   "prompt", "too_many_tokens");
  }
  if (options_.max_queued_requests > 0 && sequences > options_.max_queued_requests) {
    return invalid("The request has " + std::to_string(sequences) + " sequences, choices times prompts; at most " +
                       std::to_string(options_.max_queued_requests) + " may wait (--max-queued-requests).",
                   "n", "too_many_sequences");
  }
  if (queue_.size() > 0 && (queue_.size() + sequences > options_.max_queued_requests ||
                            queue_.tokens() + tokens > options_.max_queued_tokens)) {
    return failure(Code::overloaded, "The queue holds " + counted(queue_.size(), "request") + " with " +
                                         counted(queue_.tokens(), "token") + "; at most " +
                                         counted(options_.max_queued_requests, "request") + " and " +
                                         counted(options_.max_queued_tokens, "token") +
                                         " may wait. Try again later.");
  }
  return {};
}

void Scheduler::enqueue(SequenceSpec& spec, KnownTokens::Given prompt, std::uint32_t group, const Submit& request,
                        std::uint32_t front) {
  const std::uint32_t at = table_.create(spec.key);
  ScheduledSequence& s = table_[at];
  s.arrival = ++arrivals_;
  s.rank = (request.attempt > 0 ? 0 : static_cast<std::int64_t>(s.arrival)) + kPriorityWeight * request.priority;
  if (request.attempt > 0) s.arrived_ns = request.arrived_ns;
  s.attempt = request.attempt;
  s.front = front;
  s.destination = destination(front, spec.host);
  s.held = is_held(front);
  s.isolated = request.alone;
  isolates_ |= s.isolated;
  s.scored = spec.scored;
  s.tokens = KnownTokens(std::move(prompt), std::move(spec.output));
  s.shares_prompt = spec.parent != RequestKey{};
  s.prompt_tokens = spec.prompt_tokens;
  s.max_length = static_cast<std::int32_t>(
      std::min(std::int64_t{spec.prompt_tokens} + spec.max_output_tokens, std::int64_t{max_length_}));
  s.sampling = spec.sampling;
  s.stop_ids = std::move(spec.stop_ids);
  s.logit_bias = std::move(spec.logit_bias);
  s.cacheable = caching_.prompts && request.prefix.enabled;
  if (s.cacheable) s.root = hasher_.root(request.prefix.salt);
  s.grammar = spec.grammar;
  s.gated_from = spec.gated_from;
  if (s.grammar != 0) {
    grammar_updates_.start(s.key, s.grammar);
    const auto begin = static_cast<std::size_t>(s.prompt_tokens);
    grammar_updates_.tokens(s.key, s.tokens.range(begin, s.tokens.size() - begin, block_ids_));
  }
  s.group = group;
  if (group != kNoGroup) groups_.join(group, at);
  rewind(s);
  queue_.insert(at);
}

void Scheduler::cancel(const RequestKey& key) {
  const std::uint32_t sequence = table_.find(key);
  if (sequence != kNoSequence) end(sequence, SequenceState::ending);
}

/// Removes a sequence from the queue or the running ones. It stays in the table while a plan in flight or an
/// open ask names it.
void Scheduler::end(std::uint32_t sequence, SequenceState how) {
  ScheduledSequence& s = table_[sequence];
  if (s.state == SequenceState::ending) return;
  if (how == SequenceState::ending && s.grammar != 0) grammar_updates_.end(s.key);
  if (s.state == SequenceState::waiting) queue_.remove(sequence);
  if (s.state == SequenceState::running || s.state == SequenceState::fetching) {
    std::vector<std::uint32_t>& list = s.state == SequenceState::running ? running_ : fetching_;
    list.erase(std::find(list.begin(), list.end(), sequence));
    if (s.group != kNoGroup) groups_.add_active(s.group, -1);
  }
  if (s.state != SequenceState::putting_back) ++ending_;
  s.state = how;
  if (s.plans_out == 0 && !s.ask_open) retire(sequence);
}

/// No plan in flight and no ask names the sequence any more: frees its slot and its blocks.
void Scheduler::retire(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  --ending_;
  if (s.slot != SlotRef{}) {
    if (s.started) finished_.push_back(s.slot);
    slots_.give_back(s.slot);
  }
  if (s.leased && s.state == SequenceState::putting_back) {
    park(s);
  } else if (s.leased && s.parked && !s.cacheable) {
    withdrawals_.push_back(s.key);  // no other sequence knows their names
  }
  // One that was put back and ends before its release was sent has its release in the list already.
  const auto announced = [&](const Release& release) { return release.key == s.key; };
  if (s.leased && std::none_of(releases_.begin(), releases_.end(), announced)) {
    releases_.push_back({s.key, s.group});
  }
  if (s.state == SequenceState::putting_back) {
    rewind(s);
    queue_.insert(sequence);
  } else {
    forget(sequence);
  }
}

/// Resets a sequence so that it is computed from its first token again.
void Scheduler::rewind(ScheduledSequence& s) {
  s.state = SequenceState::waiting;
  s.started = s.refused = s.forks = s.proven = s.late = s.mask_made = s.again = false;
  s.planned = s.committed = s.known = s.sent = s.blocks = s.published = s.found = s.swapped = 0;
  s.expected = static_cast<std::int32_t>(s.tokens.size());
  s.slot = {};
  s.unsent_blocks.clear();
}

void Scheduler::forget(std::uint32_t sequence) {
  const ScheduledSequence& s = table_[sequence];
  if (s.group != kNoGroup) groups_.leave(s.group, sequence);
  table_.erase(sequence);
}

void Scheduler::fail(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out) {
  const ScheduledSequence& s = table_[sequence];
  if (s.grammar != 0) grammar_updates_.end(s.key);
  SequenceTokens& tokens = report(table_[sequence], out);
  tokens.finish = how;
  tokens.error = why;
  forget(sequence);
}

}  // namespace troupe
