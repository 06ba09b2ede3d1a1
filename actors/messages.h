#pragma once
// The messages that actors send one another: plain aggregates, units in names, no pointers, no file
// descriptors, so that each could also be sent to another process. Data only: actors/protocol.h adds how CAF
// serializes them and who may send which to whom. What is only observed is in actors/observation_messages.h,
// what a link between processes adds in actors/link_messages.h.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/cache_messages.h"
#include "base/ids.h"
#include "base/media_positions.h"
#include "base/pulse.h"
#include "base/status.h"
#include "http/api/request.h"
#include "ipc/wire.h"
#include "text/grammar/thinking_rule.h"

namespace troupe {

/// A record of the rings, as bytes (char, so that CAF needs no help with the element type).
using Bytes = std::vector<char>;

// ------------------------------------------------------------------------------ requests

using http::Answer;
using http::AnswerLimits;
using http::Api;
using http::Generation;
using http::PrefixUse;
using http::Source;
using Thinking = grammar::ThinkingRule;

/// A request that needs an actor, and who asks; from GATEWAY's HTTP side.
struct Ask : http::Request {
  std::uint32_t io = 0;        ///< I/O thread, which also selects the SESSION HOST
  std::uint64_t exchange = 0;  ///< identifies the request on that thread
  std::string request_id;      ///< for the log and x-request-id
  std::int64_t arrived_ns = 0;
  std::int64_t body_bytes = 0;  ///< of the request as it was sent: how long a TOKENIZER may take
  std::string client;           ///< who asks, as limits count them: http::Call::client
};

/// A page or an action that another actor has; from GATEWAY's HTTP side.
struct InfoAsk {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
  std::string request_id;
  http::InfoRequest::Kind kind{};  ///< metrics, config_info or reset_prefix_cache
};

/// The client of an exchange has left.
struct Withdraw {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
};

/// Timeouts of requests may be over; a SESSION HOST tells itself.
struct Expire {};

/// A part of the answer is still to be written; a SESSION HOST tells itself.
struct Resume {
  std::uint64_t exchange = 0;
};

/// An Ask has been answered or withdrawn; its admission credit is free.
struct Closed {
  std::uint64_t exchange = 0;
};

/// Measure a request's images and videos: what they are and how many tokens they take, before anything is
/// decoded. From SESSION HOST to MEDIA, at most once for a request, which ends with a ReleaseMedia.
struct MeasureMedia {
  std::uint32_t io = 0;        ///< as in Ask, and
  std::uint64_t exchange = 0;  ///< likewise
  std::string request_id;      ///< for the log
  std::string client;          ///< as in Ask
  std::string salt;            ///< PrefixUse::salt
  std::vector<http::MediaSource> items;
};

struct MeasuredMedia {
  Status status;  ///< not ok: an item is refused; names its field
  std::vector<MediaGrid> items;
};

/// Decode what was measured and put its patches into memory. At most once for a request.
struct PrepareMedia {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
};

/// An image or a video whose patches are in memory.
struct PreparedMedia {
  MediaKind kind = MediaKind::image;
  PatchGrid grid;
  BlockHash contents;      ///< of kind, grid and patches, under the key of the block names
  wire::PatchPlace place;  ///< until the request has ended
};

struct MediaReady {
  Status status;  ///< not ok: an item cannot be decoded, or memory does not suffice
  std::vector<PreparedMedia> items;
};

/// The request has ended: what is in memory of it alone may go.
struct ReleaseMedia {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
};

/// Threads of MEDIA's have ended some work; it tells itself.
struct TakeMedia {};

/// Requests that wait for memory may have waited too long; MEDIA tells itself.
struct MediaWaited {};

/// Which thread of a text process encodes a request. Those for long texts have a low priority.
enum class TextLane : std::uint8_t {
  common,
  long_texts,  ///< of clients
  background,  ///< long ones of batches
};
inline constexpr std::size_t kTextLanes = 3;

/// Apply the template and tokenize, or detokenize; from SESSION HOST to TOKENIZER, and on to its text
/// process.
struct Encode {
  std::string request_id;  ///< for the log
  Api api = Api::chat;
  Source source;
  std::vector<std::string> bad_words;
  bool token_strs = false;                ///< Api::tokenize: the tokens' text, too
  bool echo = false;                      ///< the prompts' text, too
  std::int64_t echo_tokens = 0;           ///< with echo: of a prompt of ids, its last so many
  std::vector<MediaGrid> media;           ///< what the conversation's images and videos are, in order
  std::vector<std::string> media_fields;  ///< of each of them, the field that it came from, for errors
  TextLane lane = TextLane::common;
};

/// What an answer repeats of a prompt.
struct PromptText {
  std::string text;
  std::int64_t chars = 0;  ///< code points
};

struct Encoded {
  Status status;  ///< not ok: the request is wrong, or its template failed
  std::vector<std::vector<TokenId>> prompts;
  std::vector<MediaItem> media;       ///< of the conversation, in the first prompt
  std::vector<PromptText> texts;      ///< with Encode::echo: of the prompts
  std::vector<wire::LogitBias> bans;  ///< of the bad words
  std::string answer;                 ///< of what the model does not run for: the whole answer
  std::vector<TokenId> prediction;    ///< of Source::prediction, at most as many as the model takes
};

// ------------------------------------------------------------------------- grammar

/// An http::AnswerForm whose value is JSON text, so that who hands it on, in the engine too, does not read
/// it.
struct FormText {
  http::AnswerForm::Kind kind = http::AnswerForm::Kind::free;
  std::string value;
  std::string param;
  std::vector<std::pair<std::string, std::string>> places;
};

/// What a request's answers are held to: from SESSION HOST to GRAMMAR, before anything is submitted.
struct Compile {
  std::string request_id;  ///< for the log
  FormText form;
  Thinking thinking;
  std::string client;          ///< as in Ask, and
  std::uint32_t io = 0;        ///< likewise
  std::uint64_t exchange = 0;  ///< likewise
};

/// The request of a Compile that is not answered yet has ended.
struct CancelCompile {
  std::uint32_t io = 0;
  std::uint64_t exchange = 0;
};

struct Compiled {
  Status status;              ///< not ok: the form cannot be enforced; names the place
  std::uint64_t grammar = 0;  ///< for SequenceSpec::grammar, until ReleaseGrammar
};

/// The outcome of a Compile can be taken; GRAMMAR tells itself.
struct FormReady {
  std::uint64_t ticket = 0;
};

/// A sequence cannot be held to its form any longer. It is told before the mask that the sequence would end
/// with.
struct FormLost {
  RequestKey key;
  bool too_complex = false;  ///< following it takes too long; else a fault of the server
  std::string why;           ///< of a fault
};

/// The request has ended. Sequences that have started with the grammar keep it until they end.
struct ReleaseGrammar {
  std::uint64_t grammar = 0;
};

/// A sequence that is held to `grammar` enters the SCHEDULER.
struct GrammarStart {
  RequestKey key;
  std::uint64_t grammar = 0;
  std::int32_t gated_from = 0;  ///< as in SequenceSpec
};

/// Output tokens of a sequence, in order: those that it begins with, or those of one row. A range of
/// GrammarStep::tokens, behind which the draft tokens follow that the sequence's next row verifies; behind a
/// row without tokens they are what they were.
struct GrammarTokens {
  RequestKey key;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t drafts = 0;
};

/// A gated row of a plan: needs the mask of the token that follows the tokens before it, which are known when
/// `updates` GrammarTokens of the sequence have come; and those that follow up to `places` - 1 draft tokens.
/// `forced`: most tokens to be said that the form forces behind those.
struct MaskAsk {
  RequestKey key;
  SlotRef slot;
  std::int32_t updates = 0;
  std::int32_t places = 1;
  std::int32_t forced = 0;
};

/// An update from the SCHEDULER for GRAMMAR, applied in this order: starts, tokens, ends, rows. Each of the
/// rows is answered by RowMasks in a StepMasks of its plan, as soon as the tokens before it are known; of a
/// sequence that has ended, by a mask that allows everything. Of a sequence that is late (MasksLate) too,
/// until the same row is asked for again.
struct GrammarStep {
  std::uint32_t epoch = 0;   ///< rows of an older epoch are not waited for any more
  std::uint64_t step = 0;    ///< of the plan that `rows` are about
  std::int64_t step_ns = 0;  ///< what the last step took; 0: not known
  std::vector<GrammarStart> starts;
  std::vector<GrammarTokens> sequences;
  std::vector<TokenId> tokens;
  std::vector<RequestKey> ends;
  std::vector<MaskAsk> rows;
};

/// The masks of these sequences take too long for the step that waits for them: their rows get ones that
/// allow everything, and what they sample is not used. From GRAMMAR to SCHEDULER, before it sends those
/// masks.
struct MasksLate {
  std::uint32_t epoch = 0;  ///< of the rows
  std::vector<RequestKey> keys;
};

/// Masks that were late have been made: the rows can be planned again.
struct MasksMade {
  std::vector<RequestKey> keys;
};

/// Masks that were late can be taken from the threads that made them; GRAMMAR tells itself.
struct TakeMade {};

// ------------------------------------------------------------------------- scheduling

/// An image or a video of a prompt: its tokens, what it contains, and where its patches are.
struct SequenceItem {
  MediaItem item;
  BlockHash contents;
  wire::PatchPlace place;
};

/// One sequence (one choice of one prompt) for the SCHEDULER.
struct SequenceSpec {
  RequestKey key;
  RequestKey parent;                ///< the first sequence of the same prompt, whose KV is forked; zero: none
  std::uint32_t host = 0;           ///< index of the SESSION HOST that gets its tokens
  std::vector<TokenId> prompt;      ///< empty when there is a parent
  std::vector<SequenceItem> media;  ///< of the prompt, in order; empty when there is a parent
  std::int32_t prompt_tokens = 0;
  std::int32_t max_output_tokens = 0;
  wire::Sampling sampling;
  std::vector<TokenId> stop_ids;  ///< tokens that end the sequence
  std::vector<wire::LogitBias> logit_bias;
  std::uint64_t grammar = 0;    ///< of GRAMMAR; 0: the sequence is free
  std::int32_t gated_from = 0;  ///< with a grammar: output tokens before the first that waits for a mask
  std::vector<TokenId>
      output;  ///< what it has yielded in an engine that has ended: it goes on behind these tokens
  std::int32_t scored = 0;          ///< the logprobs of prompt positions below this have been reported
  std::vector<TokenId> prediction;  ///< what the client takes the answer to be like, at most max_model_len;
                                    ///< empty: nothing is known, or there is a parent, which has it
};

/// All sequences of one Ask that have not ended; accepted or refused as a whole.
struct Submit {
  std::vector<SequenceSpec> sequences;
  std::string request_id;  ///< for the log
  PrefixUse prefix;
  std::int32_t priority = 0;    ///< lower first
  std::uint64_t exchange = 0;   ///< of the Ask; a refusal names it
  std::int64_t arrived_ns = 0;  ///< of the Ask
  std::uint32_t attempt = 0;  ///< how often it was submitted before; above 0 no limit of the queue refuses it
  bool alone = false;  ///< engines have ended while it ran: until its next token it runs in steps of its own
  bool background = false;  ///< behind all that are not, whatever its priority
  bool hands_over = false;  ///< another instance goes on with it, and copies its blocks as they are computed
};

/// Sequences that are not needed any more; unknown keys are ignored.
struct Cancel {
  std::vector<RequestKey> keys;
};

enum class Finish : std::int32_t {
  none = 0,
  stop,
  length,
  aborted,   ///< lost with the worker: the same request may succeed later
  poisoned,  ///< it alone was suspected when a second worker died: it must not be tried again
  error,
  too_complex,  ///< following its form takes too long
};

/// Logprobs at one position of a sequence, as the worker reported them.
struct PositionLogprobs {
  std::int32_t position = 0;
  wire::Logprob chosen;
  std::int32_t first_top = 0;  ///< index into StepTokens::tops
  std::int32_t tops = 0;
};

/// Result of one step for one sequence. Ranges index the arrays of StepTokens. Plain numbers without padding:
/// a step has hundreds of these, and they cross the link as one piece.
struct SequenceTokens {
  RequestKey key;
  std::int32_t first_token = 0;
  std::int32_t tokens = 0;
  std::int32_t first_score = 0;
  std::int32_t scores = 0;
  Finish finish = Finish::none;
  std::int32_t error = -1;    ///< with aborted, poisoned and error: index into StepTokens::errors; else -1
  std::uint32_t attempt = 0;  ///< of its Submit
  std::int32_t position = 0;  ///< output tokens of the sequence before these, of all attempts
  std::int64_t scheduled_ns = 0;  ///< when it first entered a plan; set with its first tokens of this attempt
  std::int32_t cached_tokens = 0;  ///< prompt tokens whose KV was found at its first admission; likewise
  std::int32_t drafted = 0;        ///< draft tokens that the step verified, those of a prediction too, and
  std::int32_t accepted = 0;       ///< those of them that the model sampled: the first of `tokens`
  std::int32_t predicted_accepted = 0;  ///< of `accepted`, tokens of SequenceSpec::prediction;
  std::int32_t predicted_rejected = 0;  ///< such tokens that were verified and are not what the model sampled
  std::int32_t first_embedding = 0;  ///< with wire::Sampling::embeds: index into StepTokens::embeddings, and
  std::int32_t embedding = 0;        ///< so many numbers, with the token behind the prompt; 0: none
  std::int32_t padding = 0;
};

/// Results of one step for all sequences of one SESSION HOST.
struct StepTokens {
  std::uint32_t engine = 0;  ///< whose step; the front, which numbers engines, sets it
  std::vector<SequenceTokens> sequences;
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> scores;
  std::vector<wire::Logprob> tops;
  std::vector<float> embeddings;
  std::vector<std::string> errors;  ///< one sentence each

  /// Says why `entry` has failed.
  void set_error(SequenceTokens& entry, std::string why) {
    entry.error = static_cast<std::int32_t>(errors.size());
    errors.push_back(std::move(why));
  }
  /// Empty if it has not.
  std::string error_of(const SequenceTokens& entry) const {
    const auto at = static_cast<std::size_t>(entry.error);
    return at < errors.size() ? errors[at] : std::string();
  }
};

// --------------------------------------------------------------------- every actor

/// Asks an actor whether it still takes messages: it beats the pulse.
struct Beat {
  std::shared_ptr<Pulse> pulse;
};

// ------------------------------------------------------------------------- worker

struct SendPlan {
  Bytes record;
};  ///< SCHEDULER → WORKER LINK
struct SendMedia {
  Bytes record;
};  ///< SCHEDULER → WORKER LINK: a SequenceMedia or EncodeMedia
struct SendMasks {
  Bytes record;
};                     ///< GRAMMAR → WORKER LINK: a StepMasks
struct RetryMasks {};  ///< WORKER LINK → itself: masks wait for room on the step ring
struct SendCacheCommand {
  Bytes record;
};  ///< CACHE MANAGER → WORKER LINK
struct StepDone {
  Bytes record;
};  ///< WORKER LINK → SCHEDULER: a StepResult
struct MediaReport {
  Bytes record;
};  ///< WORKER LINK → SCHEDULER: a MediaDone
struct CacheReport {
  Bytes record;
};  ///< WORKER LINK → CACHE MANAGER: CacheDone or Inventory

/// The worker is attached and ready; every count restarts in this epoch.
struct LinkUp {
  std::uint32_t epoch = 0;
  wire::Capacity capacity;
  std::string device;
  std::uint64_t memory = 0;  ///< wire::Hello's; of several ranks, of their lives together
};

/// The worker is gone: what was sent before will not be answered.
struct LinkDown {
  std::string why;
};

// Of one among several ranks, from its WORKER LINK to RANK GROUP.
struct RankStepDone {
  std::int32_t rank = 0;
  Bytes record;
};  ///< StepResult of rank 0, StepEnd of the others
struct RankMediaReport {
  std::int32_t rank = 0;
  Bytes record;
};
struct RankCacheReport {
  std::int32_t rank = 0;
  Bytes record;
};
struct RankUp {
  std::int32_t rank = 0;
  LinkUp link;
};
struct RankDown {
  std::int32_t rank = 0;
  std::string why;
};

/// The link cannot be used any more: it received an invalid record.
struct LinkBroken {
  std::string why;
};

}  // namespace troupe
