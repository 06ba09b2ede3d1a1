#pragma once
// Answers of /v1/chat/completions and /v1/completions: any number of choices.
#include <memory>
#include <string>
#include <vector>

#include "actors/session/answer_chunks.h"
#include "actors/session/answer_writer.h"

namespace troupe {

class ChoicesWriter final : public AnswerWriter {
 public:
  /// Both outlive this.
  ChoicesWriter(const Ask& ask, const TokenTexts& texts);

  bool append(std::string& out, AnswerContent& content, const Slice& slice) override;
  void append_failure(std::string& out, const Status& status) override;

 private:
  bool append_events(std::string& out, AnswerContent& content, const Slice& slice);
  bool append_delta(std::string& out, AnswerContent& content, SessionSequence& sequence,
                    const http::Usage* used, const Slice& slice);
  bool append_whole(std::string& out, AnswerContent& content, const Slice& slice);
  void add_choice(AnswerContent& content, SessionSequence& sequence);
  http::FinishReason finish_of(const ChoiceDelta& delta) const;
  std::vector<SessionSequence*> chosen(AnswerContent& content) const;
  http::AnswerChoice whole_choice(const AnswerContent& content, SessionSequence& sequence);
  PromptScores& prompt_scores(AnswerContent& content, const SessionSequence& sequence);
  SessionSequence& leader_of(AnswerContent& content, const SessionSequence& sequence) const;

  bool wants_logprobs() const { return ask_.generation.sampling.logprobs >= 0; }
  bool wants_prompt_logprobs() const { return ask_.generation.sampling.prompt_logprobs >= 0; }

  const Ask& ask_;
  const TokenTexts& texts_;
  const http::AnswerFrame frame_;
  std::vector<std::unique_ptr<PromptScores>> prompt_scores_;  // by prompt
  // Of a whole answer.
  bool begun_ = false;
  std::vector<SessionSequence*> chosen_;
  std::size_t added_ = 0;      // choices whose parts are in chunks_
  http::AnswerChoice choice_;  // the last of them
  AnswerChunks chunks_;
};

}  // namespace troupe
