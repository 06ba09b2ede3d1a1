#pragma once
// One open HTTP request, from its Ask to its last byte. A plain object without an actor: the SESSION HOST
// feeds it what arrives and carries out the Effects it leaves. Its states:
//
//   opened ──encoded()──▶ running ──take()…──▶ closed
//      └───────────────fail()/withdraw()──────────┘
//
// While it runs, every sequence it submitted is either told finished by the scheduler or named in
// Effects::cancel before the session closes: nothing is left behind, whatever way it ends.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/session/choice.h"
#include "http/backend.h"
#include "http/openai_response.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

/// What all sessions share; immutable.
struct SessionContext {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<TokenId> eos_ids;    ///< end the answer unless ignore_eos
  std::int32_t max_model_len = 0;  ///< prompt and answer together
  std::int32_t vocab_size = 0;     ///< of the model; ids at or above are refused
};

/// A session that has closed, for the log and the metrics.
struct FinishedRequest {
  std::string request_id;
  RequestStats stats;
};

/// What a session wants done. The host appends to one of these and then acts on it.
struct Effects {
  std::vector<http::Output> outputs;
  std::vector<RequestKey> cancel;
  std::vector<FinishedRequest> finished;  ///< at most one a session
};

class Session {
 public:
  Session(std::shared_ptr<const SessionContext> context, Ask ask);

  const Ask& ask() const { return ask_; }
  bool closed() const { return closed_; }

  /// The prompts are known. Returns the sequences to submit, whose keys are drawn from `next_key`; empty
  /// when the answer is complete already (tokenise, a refusal).
  template <class NextKey>
  Submit encoded(Encoded&& encoded, NextKey&& next_key, std::int64_t now_ns, Effects& effects) {
    Submit submit = prepare(std::move(encoded), now_ns, effects);
    RequestKey leader;
    for (SequenceSpec& spec : submit.sequences) {
      spec.key = next_key();
      if (spec.prompt.empty()) {
        spec.parent = leader;
      } else {
        leader = spec.key;
      }
    }
    adopt(submit);
    return submit;
  }

  /// Tokens of the sequence with index `choice` (its place in the Submit).
  void take(std::size_t choice, const SequenceTokens& tokens, const StepTokens& step, std::int64_t now_ns,
            Effects& effects);

  /// Sends what one or several take() calls made ready. Once per step.
  void flush(std::int64_t now_ns, Effects& effects);

  /// Ends the request with an error, in the form that the answer's progress allows.
  void fail(const Status& status, std::int64_t now_ns, Effects& effects);

  /// The client went away: nothing more is sent.
  void withdraw(std::int64_t now_ns, Effects& effects);

 private:
  struct Prompt {
    std::int32_t tokens = 0;
    TokenId first = 0;
    std::string text;          ///< with echo
    std::int64_t chars = 0;    ///< code points of it
    std::vector<TokenId> ids;  ///< with return_token_ids
  };
  struct Sequence {
    RequestKey key;
    Choice choice;
    std::int32_t prompt = 0;  ///< index into prompts_
    std::int32_t index = 0;   ///< of the choice in the answer
    bool over = false;        ///< the scheduler has told, or been told, of its end
    bool opened = false;      ///< its first chunk went out
  };

  Submit prepare(Encoded&& encoded, std::int64_t now_ns, Effects& effects);
  Status check(const std::vector<TokenId>& prompt) const;
  Status ban_words();
  Prompt describe(const std::vector<TokenId>& ids, std::size_t index) const;
  void adopt(const Submit& submit);

  void stream(std::int64_t now_ns, Effects& effects);
  void stream_choice(Sequence& sequence, const http::Usage& used, std::string& out);
  void answer_whole(std::int64_t now_ns, Effects& effects);
  std::vector<Sequence*> chosen();
  http::Choice whole_choice(Sequence& sequence);
  std::vector<http::TokenLogprob> echoed_logprobs(const Sequence& sequence) const;

  const Sequence& leader_of(const Sequence& sequence) const;
  static bool begun(const Sequence& sequence);
  bool all_finished() const;
  http::Usage usage() const;
  void close(bool ok, std::int64_t now_ns, Effects& effects);
  bool is_chat() const { return ask_.api == Api::chat; }
  bool wants_logprobs() const { return ask_.generation.sampling.logprobs >= 0; }
  bool without_output() const { return ask_.generation.max_tokens == 0; }
  std::int32_t candidates() const;
  http::Output& send(Effects& effects, http::Output::Kind kind, std::string body) const;

  std::shared_ptr<const SessionContext> context_;
  Ask ask_;
  http::AnswerFrame frame_;
  std::vector<Prompt> prompts_;
  std::vector<Sequence> sequences_;  ///< prompt by prompt, candidates() of each
  bool changed_ = false;             ///< flush() has something to look at
  bool streaming_ = false;           ///< bytes of the answer went out
  bool closed_ = false;
  std::int64_t scheduled_ns_ = 0;
  std::int64_t first_token_ns_ = 0;
};

}  // namespace troupe
