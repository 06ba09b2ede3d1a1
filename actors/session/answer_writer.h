#pragma once
// What a session's client reads: the events of a stream, or one whole answer, made of the request's prompts and
// sequences in OpenAI's words.
#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/session/session_choice.h"
#include "actors/session/submission.h"
#include "http/openai_response.h"

namespace troupe {

/// One sequence of a request and the choice that it becomes.
struct SessionSequence {
  RequestKey key;
  SessionChoice choice;
  std::int32_t prompt = 0;  ///< index of its prompt
  std::int32_t index = 0;   ///< of the choice in the answer
  bool ended = false;       ///< the SCHEDULER has reported its end, or was asked to cancel it
  bool opened = false;      ///< its first event was written
};

/// What an answer is made of.
struct AnswerContent {
  std::vector<SessionPrompt> prompts;
  std::vector<SessionSequence> sequences;  ///< prompt by prompt, candidates() of each; the first is the leader

  bool finished() const;  ///< every choice is
};

class AnswerWriter {
 public:
  /// Both outlive this.
  AnswerWriter(const Ask& ask, const Tokenizer& tokenizer);

  /// Appends the events that became ready; after the last one the usage, when asked for, and [DONE].
  void append_events(std::string& out, AnswerContent& content) const;

  /// The whole answer, once content.finished().
  std::string whole(AnswerContent& content) const;

  http::Usage usage(const AnswerContent& content) const;

 private:
  void append_news(std::string& out, const AnswerContent& content, SessionSequence& sequence,
                   const http::Usage* used) const;
  std::vector<SessionSequence*> chosen(AnswerContent& content) const;
  http::AnswerChoice whole_choice(const AnswerContent& content, SessionSequence& sequence) const;
  std::vector<http::TokenLogprob> prompt_logprobs(const AnswerContent& content, const SessionSequence& sequence) const;
  const SessionSequence& leader_of(const AnswerContent& content, const SessionSequence& sequence) const;

  bool wants_logprobs() const { return ask_.generation.sampling.logprobs >= 0; }
  bool wants_prompt_logprobs() const { return ask_.generation.sampling.prompt_logprobs >= 0; }
  /// max_tokens was 0: the one token that had to be sampled is not shown.
  bool hides_output() const { return ask_.generation.max_tokens == 0; }

  const Ask& ask_;
  const Tokenizer& tokenizer_;
  const http::AnswerFrame frame_;
};

}  // namespace troupe
