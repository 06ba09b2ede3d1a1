#include "actors/scheduler/submission_rules.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>

#include "actors/scheduler/media_rules.h"
#include "actors/scheduler/resumption_check.h"
#include "actors/scheduler/sampling_check.h"
#include "base/counted.h"

namespace troupe {
namespace {

/// Session hosts are few; the bound keeps a wrong number from growing StepOutput.
constexpr std::uint32_t kMaxHosts = 1024;

bool in_vocabulary(TokenId token, std::int32_t size) { return token >= 0 && token < size; }

}  // namespace

Status SubmissionRules::check(const Submit& request, const WorkerLimits& worker,
                              const ScheduledSequences& known, const WaitingQueue& queue,
                              std::vector<std::size_t>& origins) const {
  const std::vector<SequenceSpec>& specs = request.sequences;
  if (!worker.known()) return failure(Code::unavailable, "No worker is ready yet; try again shortly.");
  origins.resize(specs.size());
  std::int64_t tokens = 0;
  std::unordered_map<RequestKey, std::size_t> places;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    origins[i] = i;
    if (specs[i].parent != RequestKey{}) {
      const auto parent = places.find(specs[i].parent);
      if (parent == places.end() || origins[parent->second] != parent->second) {
        return invalid("A choice names a parent that does not stand before it.", "parent");
      }
      origins[i] = parent->second;
    }
    if (!places.emplace(specs[i].key, i).second) {
      return invalid("Two sequences of one request have the same key.", "key");
    }
    Status status = check_sequence(specs[i], specs[origins[i]], request.attempt, worker, known);
    if (!status.ok()) return status;
    tokens += static_cast<std::int64_t>(specs[i].prompt.size());
  }
  if (request.attempt > 0) return {};  // one that goes on was let in before
  const auto embeds = [](const SequenceSpec& spec) { return spec.sampling.embeds != 0; };
  return check_room(std::ranges::count_if(specs, std::not_fn(embeds)), tokens,
                    request.background ? queue.all() : queue.foreground());
}

Status SubmissionRules::check_sequence(const SequenceSpec& spec, const SequenceSpec& prompt,
                                       std::uint32_t attempt, const WorkerLimits& worker,
                                       const ScheduledSequences& known) const {
  const std::int64_t length = static_cast<std::int64_t>(prompt.prompt.size());
  if (spec.key == RequestKey{} || known.find(spec.key) != kNoSequence) {
    return invalid("The sequence's key is zero or in use already.", "key");
  }
  if (spec.host >= kMaxHosts) {
    return invalid(
        "host is " + std::to_string(spec.host) + "; it must be below " + std::to_string(kMaxHosts) + ".",
        "host");
  }
  if (length == 0) return invalid("The prompt is empty; at least one token is needed.", "prompt", "empty");
  if (spec.prompt_tokens != length) {
    return invalid("prompt_tokens is " + std::to_string(spec.prompt_tokens) + "; it must be " +
                       std::to_string(length) + ", the number of ids given.",
                   "prompt_tokens");
  }
  if (spec.max_output_tokens < 1) {
    return invalid("max_tokens is " + std::to_string(spec.max_output_tokens) + "; it must be at least 1.",
                   "max_tokens", "out_of_range");
  }
  if (spec.sampling.embeds != 0 && (worker.embedding_width == 0 || spec.sampling.embeds > 1)) {
    return invalid("Embeddings are not offered on this server's device: allowed are cpu and cuda.", "input",
                   "not_offered");
  }
  if (length >= worker.longest(spec.sampling)) {
    return invalid("The prompt has " + counted(length, "token") + ", but a sequence has room for " +
                       std::to_string(worker.max_length) + " and the answer needs at least one of them.",
                   "prompt", "context_length_exceeded");
  }
  if (spec.gated_from < 0) {
    return invalid("gated_from is " + std::to_string(spec.gated_from) + "; it must be at least 0.",
                   "gated_from");
  }
  if (Status status = check_sampling(spec, worker.vocab_size, worker.max_logprobs); !status.ok())
    return status;
  if (Status status = check_resumption(spec, attempt, worker.vocab_size, worker.longest(spec.sampling));
      !status.ok())
    return status;
  for (const TokenId token : spec.prediction) {
    if (in_vocabulary(token, worker.vocab_size)) continue;
    return invalid("The prediction holds token " + std::to_string(token) + "; ids are 0 to " +
                       std::to_string(worker.vocab_size - 1) + ".",
                   "prediction", "out_of_range");
  }
  for (const TokenId token : spec.prompt) {
    if (in_vocabulary(token, worker.vocab_size)) continue;
    return invalid("The prompt holds token " + std::to_string(token) + "; ids are 0 to " +
                       std::to_string(worker.vocab_size - 1) + ".",
                   "prompt", "out_of_range");
  }
  return check_media(spec, worker);
}

/// `waiting`: what the request would wait behind; requests of batches take no room from others. Of a request
/// that could not even wait in an empty queue "try again later" would be said for ever. A bound of 0 lets
/// nothing wait behind another request, and is none for the size of one.
Status SubmissionRules::check_room(std::int64_t sequences, std::int64_t tokens,
                                   const WaitingQueue::Load& waiting) const {
  if (max_queued_tokens_ > 0 && tokens > max_queued_tokens_) {
    return invalid("The request has " + counted(tokens, "prompt token") + "; at most " +
                       std::to_string(max_queued_tokens_) + " may wait (--max-queued-tokens).",
                   "prompt", "too_many_tokens");
  }
  // Embeddings are bounded by their tokens alone: a request may have thousands of short inputs.
  if (max_queued_requests_ > 0 && sequences > max_queued_requests_) {
    return invalid("The request has " + std::to_string(sequences) +
                       " sequences, choices times prompts; at most " + std::to_string(max_queued_requests_) +
                       " may wait (--max-queued-requests).",
                   "n", "too_many_sequences");
  }
  if (waiting.sequences > 0 &&
      (waiting.answers + sequences > max_queued_requests_ || waiting.tokens + tokens > max_queued_tokens_)) {
    return failure(Code::overloaded, "The queue holds " + counted(waiting.sequences, "request") + " with " +
                                         counted(waiting.tokens, "token") + "; at most " +
                                         counted(max_queued_requests_, "request") + " and " +
                                         counted(max_queued_tokens_, "token") +
                                         " may wait. Try again later.");
  }
  return {};
}

}  // namespace troupe
