#pragma once
// One open HTTP request, from its Ask to its last byte. A plain object without an actor: the SESSION HOST
// feeds it what arrives and carries out the Effects it leaves. Its states:
//
//   opened ──[measured()]──encoded()──[prepared()]──▶ ready ──[compiled()]──submission()──▶ running
//                                                       ▲                                     │  │
//                                                       └──engine_ended(), or handed over──────┘  │
//                                                            closed ◀──────────────…take()───────┘
//
// With images it is measured before its text becomes ids, so that these have as many placeholders as the
// images have tokens, and its images are decoded once it is known that all of them fit the model. What MEDIA
// holds for it is released once, when it closes.
//
// fail(), withdraw() and expire() close it in any state. Before it closes, each of its sequences that an
// engine has been given has been reported finished by the SCHEDULER, has gone with its engine, or is named in
// Effects::cancel, so nothing keeps running for a request that has ended.
//
// It keeps what it needs to be submitted again: the ids of its prompts, the form of its answer, and of each
// sequence the output tokens that it has taken. What it sends does not depend on how many engines have run
// it.
//
// An engine that hands over (a prefill instance) is given each sequence with a limit of one token. When all
// that have not ended have theirs, no engine has the session, and another one is given it as after an
// engine's end.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "actors/session/answer_writer.h"
#include "actors/session/engine_lives.h"
#include "actors/session/engine_router.h"
#include "actors/session/submission.h"
#include "http/server/backend.h"

namespace troupe {

/// A session that has got its first token, for the log.
struct BegunRequest {
  std::string request_id;
  double queue_s = 0;  ///< from its arrival to its first step
  double ttft_s = 0;   ///< and to its first token
};

/// A choice of an answer, for the log: its beginning, as SessionContext::logged_bytes says.
struct ChoiceText {
  std::int32_t index = 0;
  std::string text;
  std::string reasoning;
  std::string calls;  ///< "name(arguments)", a line each
};

/// A session that has closed, for the log and the metrics.
struct FinishedRequest {
  std::string request_id;
  RequestStats stats;
  std::vector<ChoiceText> answers;  ///< empty where logs hold no text
};

/// A sequence that its engine need not run any more.
struct CancelledSequence {
  std::uint32_t engine = 0;  ///< index
  RequestKey key;

  bool operator==(const CancelledSequence&) const = default;
};

/// A grammar of an engine that its request does not need any more.
struct ReleasedGrammar {
  std::uint32_t engine = 0;  ///< index
  std::uint64_t grammar = 0;

  bool operator==(const ReleasedGrammar&) const = default;
};

/// A session whose prefill instance is done with it.
struct HandedOver {
  std::uint64_t exchange = 0;
  std::string request_id;
  std::uint32_t engine = 0;  ///< index of the prefill instance
  bool failed = false;       ///< it has not computed the prompts
};

/// What a session wants done. The host appends to one of these and then carries it out.
struct Effects {
  std::vector<http::Output> outputs;
  std::vector<std::uint64_t> media;  ///< exchanges whose images MEDIA need not hold any more
  std::vector<CancelledSequence> cancel;
  std::vector<FinishedRequest> finished;  ///< at most one a session
  std::vector<ReleasedGrammar> grammars;  ///< to release
  std::vector<std::uint64_t> unfinished;  ///< exchanges to resume() soon: the slice was over
  std::vector<BegunRequest> begun;
  std::vector<HandedOver> handed_over;  ///< to be brought to another engine
  std::vector<std::string>
      poisonous;  ///< ids of requests that have failed because engines ended while they ran
};

class Session {
 public:
  Session(std::shared_ptr<const SessionContext> context, Ask ask);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool closed() const { return closed_; }

  /// The request's images and videos for MEDIA, to be measured before take_encode(). Once; nothing when it
  /// has none.
  std::optional<MeasureMedia> take_media();

  /// The answer to take_media().
  void measured(MeasuredMedia&& media, std::int64_t now_ns, Effects& effects);

  /// Bytes that a TOKENIZER has to read, about.
  std::int64_t text_bytes() const { return text_bytes_; }
  /// True for a request of a batch.
  bool background() const { return ask_.background; }

  /// The job for a TOKENIZER. Once: it takes the request's conversation and prompts along.
  Encode take_encode();

  /// The prompts are known. The session has sequences afterwards unless the answer is complete already
  /// (tokenize, detokenize, a refusal).
  void encoded(Encoded&& encoded, KeySource& keys, std::int64_t now_ns, Effects& effects);

  /// Its images are to be decoded before it is ready(). True once.
  bool take_prepare();

  /// The answer to the PrepareMedia that take_prepare() stood for.
  void prepared(MediaReady&& media, std::int64_t now_ns, Effects& effects);

  /// In an order that stays; none before encoded().
  const std::vector<SessionSequence>& sequences() const { return content_.sequences; }

  /// It has sequences that have not ended, and no engine has them.
  bool ready() const;

  /// What an engine has to compute for it, for the choice of one; only when ready(). Valid until the session
  /// changes.
  EngineRouter::Request wanted() const;

  /// It is given to the engine of this index from now on. Only while no engine has it. `hands_over`: as
  /// wanted() allowed, the engine computes the prompts and hands the session over.
  void give_to(std::uint32_t engine, bool hands_over = false) {
    engine_ = engine;
    hands_over_ = hands_over;
  }

  /// An engine that was to hand it over will not: it is not given to another such one.
  void give_back() {
    given_back_ = true;
    hands_over_ = false;
  }

  /// Its sequences are to be held to a grammar that has to be compiled first, in each engine.
  bool needs_grammar() const;

  /// What GRAMMAR has to compile when needs_grammar().
  Compile compile_job() const;

  /// The answer to compile_job(): the grammar of its engine, or the end of the request.
  void compiled(const Compiled& compiled, std::int64_t now_ns, Effects& effects);

  /// The sequences that have not ended, for its engine; they go on behind the tokens that were taken. The
  /// first of each prompt brings its ids, the others name it as their parent. Only when ready(), and
  /// compiled() if needs_grammar().
  Submit submission(bool alone);

  /// The engine has ended. `counts`: it may have been this request's doing; `alone`: it ran alone, in
  /// Quarantine.
  void engine_ended(bool counts, bool alone);

  const EngineLives& lives() const { return lives_; }

  /// Whether the engine has the submission of this number.
  bool is_submitted(std::uint32_t attempt) const { return submitted_ && attempt + 1 == attempts_; }

  /// The engine has refused the submission of this number.
  void refused(std::uint32_t attempt, const Status& status, std::int64_t now_ns, Effects& effects);

  /// The engine has refused what it was submitted last, and another one is to be asked.
  void take_back(Effects& effects);

  /// The submission of this number goes on with what a prefill instance has handed over.
  bool is_handed_over(std::uint32_t attempt) const { return attempt > 0 && attempt == handed_over_; }

  /// Its prefill instance need not compute it any more: it is given to another engine.
  void leave_engine(Effects& effects);

  /// An entry about sequence number `place` of sequences(). False when it was dropped: it is of another
  /// attempt, or does not go on where the last one ended.
  bool take(std::size_t place, const SequenceTokens& tokens, const StepTokens& step, std::int64_t now_ns,
            Effects& effects);

  /// Sends what one or several take() calls made ready. Once per step. What the slice leaves no time for is
  /// left to resume().
  void flush(std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// Goes on with the answer. Once for each mention in Effects::unfinished.
  void resume(std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// Ends the request with an error, as a whole answer or as an event of the stream that has begun.
  void fail(const Status& status, std::int64_t now_ns, Effects& effects);

  /// The request's timeout is over: an error when it has no token yet, else the answer ends with what it has.
  void expire(std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// The client went away: nothing more is sent.
  void withdraw(std::int64_t now_ns, Effects& effects);

 private:
  const AnswerSyntax* syntax_of_answer() const;
  Status check(const Encoded& encoded);
  Status failure_of(const SequenceTokens& tokens, const StepTokens& step) const;
  Status check_media(const Encoded& encoded) const;
  bool keep_part(std::string&& part);
  std::vector<ChoiceText> take_logged();
  void cancel(SessionSequence& sequence, Effects& effects) const;
  void hand_over(Effects& effects);
  void give_up(SessionSequence& failed, Effects& effects);
  /// `unfinished`: how choices ended that have no end of their own.
  void close(Ending unfinished, std::int64_t now_ns, Effects& effects);
  void send(Effects& effects, http::Output::Kind kind, std::string body, bool failed = false) const;

  const std::shared_ptr<const SessionContext> context_;
  Ask ask_;
  Thinking thinking_;                ///< of every answer, once the prompt is known
  std::vector<TokenId> prediction_;  ///< likewise
  const std::unique_ptr<AnswerWriter> writer_;
  AnswerContent content_;
  bool changed_ = false;  ///< there is something for flush() to send
  std::int64_t text_bytes_ = 0;
  std::vector<MediaGrid> measured_;        ///< the images, until they are encoded
  std::vector<std::string> media_fields_;  ///< where the conversation has them
  std::vector<MediaItem> in_prompt_;       ///< where they are, until they are prepared
  bool media_held_ = false;                ///< MEDIA has been asked to measure them
  bool prepares_ = false;                  ///< it has been asked to decode them
  bool streaming_ = false;                 ///< an event was sent: an error has to be an event too
  bool closed_ = false;
  bool unfinished_ = false;         ///< resume() will be called
  std::vector<std::string> parts_;  ///< of a whole answer, as far as it is written
  std::size_t part_bytes_ = 0;
  std::uint32_t engine_ = 0;       ///< index of the one that it was given to
  std::uint64_t grammar_ = 0;      ///< of that engine's present process
  bool submitted_ = false;         ///< to that process
  std::uint32_t attempts_ = 0;     ///< submissions so far
  bool hands_over_ = false;        ///< the engine that it was given to is to hand it over
  std::uint32_t handed_over_ = 0;  ///< number of the submission that goes on behind one; 0: none does
  bool given_back_ = false;        ///< one has refused or failed to
  EngineLives lives_;
  metrics::GapCounts gaps_;
  std::int64_t scheduled_ns_ = 0;
  std::int64_t first_token_ns_ = 0;
};

}  // namespace troupe
