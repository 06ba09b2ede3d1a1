#pragma once
// How each message becomes bytes: CAF's inspectors, which name every member of a type. The links between
// processes use them (actors/link/message_codec.h); messages within a process are moved.
#include <caf/all.hpp>
#include <limits>

#include "actors/link_messages.h"
#include "actors/messages.h"
#include "actors/observation_messages.h"

// Stays within the process: the pulse is shared.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Beat)

namespace troupe {

/// The inspector of `type`, whose members follow; of a message that has none, nothing does.
#define TROUPE_INSPECT(type, ...)                                     \
  template <class I>                                                  \
  typename I::result_type inspect(I& f, [[maybe_unused]] type& x) {   \
    return f(caf::meta::type_name(#type) __VA_OPT__(, ) __VA_ARGS__); \
  }

TROUPE_INSPECT(Status, x.code, x.message, x.param, x.reason)
TROUPE_INSPECT(RequestKey, x.hi, x.lo)
TROUPE_INSPECT(BlockHash, x.hi, x.lo)
TROUPE_INSPECT(PatchGrid, x.frames, x.rows, x.columns)
TROUPE_INSPECT(PixelLimits, x.min_pixels, x.max_pixels)
TROUPE_INSPECT(VideoSampling, x.fps, x.min_frames, x.max_frames, x.target_frames, x.choice)
TROUPE_INSPECT(MediaGrid, x.kind, x.grid)
TROUPE_INSPECT(MediaItem, x.kind, x.grid, x.first)

namespace wire {
TROUPE_INSPECT(Sampling, x.temperature, x.top_p, x.min_p, x.top_k, x.repetition_penalty, x.presence_penalty,
               x.frequency_penalty, x.min_tokens, x.seed, x.choice, x.logprobs, x.prompt_logprobs, x.embeds)
TROUPE_INSPECT(LogitBias, x.token, x.bias)
TROUPE_INSPECT(PatchPlace, x.offset, x.generation)
TROUPE_INSPECT(Logprob, x.token, x.logprob)
TROUPE_INSPECT(Capacity, x.kv_blocks, x.block_tokens, x.max_slots, x.max_tokens_per_step, x.max_model_len,
               x.vocab_size, x.max_steps_in_flight, x.max_logprobs, x.weight_bytes, x.kv_bytes, x.arena_bytes,
               x.swap_blocks, x.media_tokens, x.max_drafts, x.max_sampled, x.max_proposed, x.frame_patches,
               x.embedding_width)
}  // namespace wire

namespace grammar {
TROUPE_INSPECT(ThinkingRule, x.end, x.open, x.budget, x.forced, x.denied)
}  // namespace grammar

namespace http {
inline constexpr JsonBounds kAnyJson{std::numeric_limits<int>::max(),
                                     std::numeric_limits<std::int64_t>::max()};

/// Within the process a conversation is moved. Where a message has to become bytes, its JSON travels as text.
template <class I>
typename I::result_type inspect(I& f, Conversation& x) {
  std::string messages = to_text(x.messages), tools = to_text(x.tools), kwargs = to_text(x.template_kwargs);
  const auto load = [&]() -> caf::error {
    auto read_messages = parse_json(messages, kAnyJson), read_tools = parse_json(tools, kAnyJson),
         read_kwargs = parse_json(kwargs, kAnyJson);
    if (!read_messages.ok() || !read_tools.ok() || !read_kwargs.ok()) return caf::sec::invalid_argument;
    x.messages = *std::move(read_messages);
    x.tools = *std::move(read_tools);
    x.template_kwargs = *std::move(read_kwargs);
    return caf::none;
  };
  return f(caf::meta::type_name("Conversation"), messages, tools, kwargs, x.add_generation_prompt,
           x.continue_final_message, x.without_template, caf::meta::load_callback(load));
}

template <class I>
typename I::result_type inspect(I& f, AnswerForm& x) {
  std::string value = to_text(x.value);
  const auto load = [&]() -> caf::error {
    auto read = parse_json(value, kAnyJson);
    if (!read.ok()) return caf::sec::invalid_argument;
    x.value = *std::move(read);
    return caf::none;
  };
  return f(caf::meta::type_name("AnswerForm"), x.kind, value, x.param, x.places,
           caf::meta::load_callback(load));
}

TROUPE_INSPECT(MediaSource, x.kind, x.file, x.frames, x.url, x.name, x.limits, x.sampling, x.param)
TROUPE_INSPECT(Source, x.conversation, x.media, x.texts, x.ids, x.keep_tokens, x.prediction)
TROUPE_INSPECT(AnswerLimits, x.tools, x.parallel_calls, x.response, x.thinking, x.thinking_share)
TROUPE_INSPECT(Generation, x.sampling, x.choices, x.best_of, x.max_tokens, x.ignore_eos, x.stop_ids,
               x.logit_bias, x.bad_words, x.stop, x.include_stop, x.form, x.limits)
TROUPE_INSPECT(PrefixUse, x.enabled, x.salt)
TROUPE_INSPECT(EmbeddingForm, x.dimensions, x.normalize, x.base64, x.of_messages)
TROUPE_INSPECT(Answer, x.id, x.model, x.created_s, x.stream, x.include_usage, x.continuous_usage, x.echo,
               x.return_token_ids, x.tokens_per_event, x.function_call, x.settings, x.has_prediction,
               x.embedding)
}  // namespace http

TROUPE_INSPECT(Ask, x.api, x.timeout_ns, x.priority, x.background, x.together, x.source, x.generation,
               x.prefix, x.answer, x.io, x.exchange, x.request_id, x.arrived_ns, x.body_bytes, x.client)
TROUPE_INSPECT(InfoAsk, x.io, x.exchange, x.request_id, x.kind)
TROUPE_INSPECT(Withdraw, x.io, x.exchange)
TROUPE_INSPECT(Resume, x.exchange)
TROUPE_INSPECT(Closed, x.exchange)
TROUPE_INSPECT(MeasureMedia, x.io, x.exchange, x.request_id, x.client, x.salt, x.items)
TROUPE_INSPECT(MeasuredMedia, x.status, x.items)
TROUPE_INSPECT(PrepareMedia, x.io, x.exchange)
TROUPE_INSPECT(PreparedMedia, x.kind, x.grid, x.contents, x.place)
TROUPE_INSPECT(MediaReady, x.status, x.items)
TROUPE_INSPECT(ReleaseMedia, x.io, x.exchange)
TROUPE_INSPECT(TakeMedia)
TROUPE_INSPECT(MediaWaited)
TROUPE_INSPECT(Encode, x.request_id, x.api, x.source, x.bad_words, x.token_strs, x.echo, x.echo_tokens,
               x.media, x.media_fields, x.lane)
TROUPE_INSPECT(PromptText, x.text, x.chars)
TROUPE_INSPECT(Encoded, x.status, x.prompts, x.media, x.texts, x.bans, x.answer, x.prediction)
TROUPE_INSPECT(SequenceItem, x.item, x.contents, x.place)
TROUPE_INSPECT(SequenceSpec, x.key, x.parent, x.host, x.prompt, x.media, x.prompt_tokens, x.max_output_tokens,
               x.sampling, x.stop_ids, x.logit_bias, x.grammar, x.gated_from, x.output, x.scored,
               x.prediction)
TROUPE_INSPECT(FormText, x.kind, x.value, x.param, x.places)
TROUPE_INSPECT(Compile, x.request_id, x.form, x.thinking, x.client, x.io, x.exchange)
TROUPE_INSPECT(CancelCompile, x.io, x.exchange)
TROUPE_INSPECT(Compiled, x.status, x.grammar)
TROUPE_INSPECT(FormReady, x.ticket)
TROUPE_INSPECT(FormLost, x.key, x.too_complex, x.why)
TROUPE_INSPECT(ReleaseGrammar, x.grammar)
TROUPE_INSPECT(GrammarStart, x.key, x.grammar, x.gated_from)
TROUPE_INSPECT(GrammarTokens, x.key, x.first, x.count, x.drafts)
TROUPE_INSPECT(MaskAsk, x.key, x.slot.slot, x.slot.generation, x.updates, x.places, x.forced)
TROUPE_INSPECT(MasksLate, x.epoch, x.keys)
TROUPE_INSPECT(MasksMade, x.keys)
TROUPE_INSPECT(GrammarStep, x.epoch, x.step, x.step_ns, x.starts, x.sequences, x.tokens, x.ends, x.rows)
TROUPE_INSPECT(Submit, x.sequences, x.request_id, x.prefix, x.priority, x.exchange, x.arrived_ns, x.attempt,
               x.alone, x.background, x.hands_over)
TROUPE_INSPECT(Cancel, x.keys)
TROUPE_INSPECT(PositionLogprobs, x.position, x.chosen, x.first_top, x.tops)
TROUPE_INSPECT(SequenceTokens, x.key, x.first_token, x.tokens, x.first_score, x.scores, x.finish, x.error,
               x.attempt, x.position, x.scheduled_ns, x.cached_tokens, x.drafted, x.accepted,
               x.predicted_accepted, x.predicted_rejected, x.first_embedding, x.embedding, x.padding)
TROUPE_INSPECT(StepTokens, x.engine, x.sequences, x.tokens, x.scores, x.tops, x.embeddings, x.errors)
TROUPE_INSPECT(SwapStatus, x.total, x.free, x.cached, x.moving, x.out, x.in, x.evicted, x.failed, x.declined)
TROUPE_INSPECT(PeerStatus, x.in, x.failed)
TROUPE_INSPECT(CacheStatus, x.total, x.free, x.cached, x.leased, x.moving, x.evicted, x.swap, x.peers)
TROUPE_INSPECT(HashRange, x.first, x.count)
TROUPE_INSPECT(PublishAsk, x.key, x.first, x.hashes)
TROUPE_INSPECT(GrowAsk, x.key, x.blocks, x.keep_free, x.hashes)
TROUPE_INSPECT(ForkAsk, x.parent, x.child, x.tokens, x.blocks, x.keep_free)
TROUPE_INSPECT(CacheAsks, x.epoch, x.releases, x.forks, x.grows, x.publishes, x.withdrawals, x.hashes,
               x.prefill_tokens_per_s)
TROUPE_INSPECT(Grant, x.key, x.first, x.first_block, x.blocks, x.refused, x.cached, x.swapped, x.fetching)
TROUPE_INSPECT(FetchOutcome, x.key, x.failed)
TROUPE_INSPECT(CacheGrants, x.epoch, x.grants, x.fetched, x.blocks, x.last_command, x.status)
TROUPE_INSPECT(ExpectBlocks, x.key, x.names)
TROUPE_INSPECT(ForgetBlocks, x.keys)
TROUPE_INSPECT(FrontExpects, x.front, x.expected)
TROUPE_INSPECT(CopyAhead)
TROUPE_INSPECT(SendPlan, x.record)
TROUPE_INSPECT(SendMedia, x.record)
TROUPE_INSPECT(SendMasks, x.record)
TROUPE_INSPECT(SendCacheCommand, x.record)
TROUPE_INSPECT(StepDone, x.record)
TROUPE_INSPECT(MediaReport, x.record)
TROUPE_INSPECT(CacheReport, x.record)
TROUPE_INSPECT(LinkUp, x.epoch, x.capacity, x.device, x.memory)
TROUPE_INSPECT(LinkDown, x.why)
TROUPE_INSPECT(LinkBroken, x.why)
TROUPE_INSPECT(Greeting, x.version, x.build)
TROUPE_INSPECT(Welcome, x.version, x.build, x.topology)
TROUPE_INSPECT(TextAnswer, x.number, x.encoded)
TROUPE_INSPECT(TextUp, x.index)
TROUPE_INSPECT(EngineUp, x.engine, x.epoch)
TROUPE_INSPECT(EngineDown, x.engine, x.epoch, x.why)
TROUPE_INSPECT(EngineServes, x.engine, x.serves)
TROUPE_INSPECT(WaitedForEngine, x.engine, x.epoch)
TROUPE_INSPECT(Refused, x.exchange, x.attempt, x.status)
TROUPE_INSPECT(FrontSubmit, x.front, x.submit)
TROUPE_INSPECT(FrontReady, x.front)
TROUPE_INSPECT(FrontLost, x.front)
TROUPE_INSPECT(FrontSettled, x.front)
TROUPE_INSPECT(LinkMessage, x.type, x.tag, x.epoch, x.bytes)
TROUPE_INSPECT(LinkEpoch, x.epoch)
TROUPE_INSPECT(TracedEvent, x.actor, x.event, x.request_id, x.details, x.at_ns)
TROUPE_INSPECT(SilentPart, x.part)
TROUPE_INSPECT(RankStepDone, x.rank, x.record)
TROUPE_INSPECT(RankMediaReport, x.rank, x.record)
TROUPE_INSPECT(RankCacheReport, x.rank, x.record)
TROUPE_INSPECT(RankUp, x.rank, x.link)
TROUPE_INSPECT(RankDown, x.rank, x.why)
namespace metrics {
TROUPE_INSPECT(DraftCounts, x.rows, x.with_drafts, x.drafted, x.accepted, x.emitted, x.drafted_at,
               x.accepted_at, x.reached_at)
}

TROUPE_INSPECT(StepStats, x.engine, x.running, x.waiting, x.prompt_tokens, x.generated_tokens, x.preempted,
               x.admitted, x.admitted_hits, x.admitted_tokens, x.cached_tokens, x.swapped_tokens, x.kv,
               x.step_s, x.predicted_s, x.encoded, x.encode_s, x.encodings_found, x.drafts)
TROUPE_INSPECT(RequestStats, x.ok, x.endings, x.gaps.counts, x.gaps.sum_s, x.prompt_tokens, x.cached_tokens,
               x.output_tokens, x.max_tokens, x.queue_s, x.prefill_s, x.ttft_s, x.decode_s, x.e2e_s,
               x.handed_over, x.given_back)
TROUPE_INSPECT(HttpStats, x.path, x.status, x.generates)
TROUPE_INSPECT(DoorStats, x.turned_away, x.failed_handshakes, x.faults)
TROUPE_INSPECT(MediaStats, x.file_bytes, x.file_limit, x.patch_bytes, x.patch_limit, x.cached_bytes,
               x.cached_limit, x.cached_entries, x.hits, x.misses, x.decodes_running, x.decodes_waiting,
               x.requests_waiting, x.refused)
TROUPE_INSPECT(ProcessReport, x.name, x.pid, x.restarts)
TROUPE_INSPECT(ProcessReports, x.processes)
TROUPE_INSPECT(SchedulerStatus, x.running, x.max_running, x.waiting, x.max_waiting, x.prompt_tokens,
               x.cached_tokens)
TROUPE_INSPECT(ProbeAnswer, x.mailbox)
TROUPE_INSPECT(ActorReport, x.name, x.number, x.answered, x.restarts, x.mailbox, x.answer_ns)
TROUPE_INSPECT(ActorReports, x.actors)
TROUPE_INSPECT(EngineStatus, x.state, x.scheduler, x.engines, x.cache, x.media, x.open_requests,
               x.max_requests)
TROUPE_INSPECT(Expire)
TROUPE_INSPECT(Drain)
TROUPE_INSPECT(ResetPrefixCache)
TROUPE_INSPECT(Abandon)
TROUPE_INSPECT(Probe)
TROUPE_INSPECT(ProbeAll)
TROUPE_INSPECT(RetryAlone)
TROUPE_INSPECT(TakeMade)
TROUPE_INSPECT(RetryMasks)
#undef TROUPE_INSPECT

}  // namespace troupe
