#pragma once
// One open HTTP request, from its Ask to its last byte. A plain object without an actor: the SESSION HOST
// feeds it what arrives and carries out the Effects it leaves. Its states:
//
//   opened ──encoded()──▶ [compiling ──compiled()──▶] running ──take()…──▶ closed
//      └────────────────────────fail()/withdraw()─────────────────────────────┘
//
// Before it closes, each of its sequences has been reported finished by the SCHEDULER or is named in
// Effects::cancel, so nothing keeps running for a request that has ended.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "actors/session/answer_writer.h"
#include "actors/session/submission.h"
#include "http/backend.h"

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

/// What a session wants done. The host appends to one of these and then carries it out.
struct Effects {
  std::vector<http::Output> outputs;
  std::vector<RequestKey> cancel;
  std::vector<FinishedRequest> finished;  ///< at most one a session
  std::vector<std::uint64_t> grammars;    ///< to release
  std::vector<std::uint64_t> unfinished;  ///< exchanges to resume() soon: the slice was over
  std::vector<BegunRequest> begun;
};

class Session {
 public:
  Session(std::shared_ptr<const SessionContext> context, Ask ask);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool closed() const { return closed_; }

  /// The job for a TOKENIZER. Once: it takes the request's conversation and prompts along.
  Encode take_encode();

  /// The prompts are known. Returns the sequences to submit; none when the answer is complete already
  /// (tokenize, detokenize, a refusal).
  Submit encoded(Encoded&& encoded, KeySource& keys, std::int64_t now_ns, Effects& effects);

  /// What GRAMMAR has to compile before the sequences of encoded() are submitted; nothing when they are free. Once.
  std::optional<Compile> take_compile();

  /// The answer to take_compile(): holds the sequences to the grammar, or ends the request. False when it has ended.
  bool compiled(const Compiled& compiled, Submit& submit, std::int64_t now_ns, Effects& effects);

  /// Tokens of sequence number `place` of the Submit.
  void take(std::size_t place, const SequenceTokens& tokens, const StepTokens& step, std::int64_t now_ns,
            Effects& effects);

  /// Sends what one or several take() calls made ready. Once per step. What the slice leaves no time for is left to
  /// resume().
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
  bool keep_part(std::string&& part);
  std::vector<ChoiceText> take_logged();
  /// `unfinished`: how choices ended that have no end of their own.
  void close(Ending unfinished, std::int64_t now_ns, Effects& effects);
  void send(Effects& effects, http::Output::Kind kind, std::string body, bool failed = false) const;

  const std::shared_ptr<const SessionContext> context_;
  Ask ask_;
  const std::unique_ptr<AnswerWriter> writer_;
  AnswerContent content_;
  bool changed_ = false;    ///< there is something for flush() to send
  bool streaming_ = false;  ///< an event was sent: an error has to be an event too
  bool closed_ = false;
  bool unfinished_ = false;  ///< resume() will be called
  std::vector<std::string> parts_;  ///< of a whole answer, as far as it is written
  std::size_t part_bytes_ = 0;
  std::uint64_t grammar_ = 0;
  metrics::GapCounts gaps_;
  std::int64_t scheduled_ns_ = 0;
  std::int64_t first_token_ns_ = 0;
};

}  // namespace troupe
