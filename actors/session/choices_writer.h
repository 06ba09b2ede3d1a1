#pragma once
// Answers of /v1/chat/completions and /v1/completions: any number of choices.
#include <string>
#include <vector>

#include "actors/session/answer_writer.h"

namespace troupe {

class ChoicesWriter final : public AnswerWriter {
 public:
  /// Both outlive this.
  ChoicesWriter(const Ask& ask, const Tokenizer& tokenizer);

  void append(std::string& out, AnswerContent& content) override;
  void append_failure(std::string& out, const Status& status) override;

 private:
  void append_events(std::string& out, AnswerContent& content) const;
  void append_news(std::string& out, const AnswerContent& content, SessionSequence& sequence,
                   const http::Usage* used) const;
  std::string whole(AnswerContent& content) const;
  http::FinishReason finish_of(const ChoiceNews& news) const;
  std::vector<SessionSequence*> chosen(AnswerContent& content) const;
  http::AnswerChoice whole_choice(const AnswerContent& content, SessionSequence& sequence) const;
  std::vector<http::TokenLogprob> prompt_logprobs(const AnswerContent& content,
                                                  const SessionSequence& sequence) const;
  const SessionSequence& leader_of(const AnswerContent& content, const SessionSequence& sequence) const;

  bool wants_logprobs() const { return ask_.generation.sampling.logprobs >= 0; }
  bool wants_prompt_logprobs() const { return ask_.generation.sampling.prompt_logprobs >= 0; }

  const Ask& ask_;
  const Tokenizer& tokenizer_;
  const http::AnswerFrame frame_;
};

}  // namespace troupe
