#pragma once
// What a session's client reads: the events of a stream, or one whole answer, made of the request's prompts
// and sequences. There is a writer for each form of answers.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/session/session_choice.h"
#include "actors/session/slice.h"
#include "actors/session/submission.h"
#include "http/api/openai_response.h"

namespace troupe {

/// One sequence of a request and the choice that it becomes.
struct SessionSequence {
  RequestKey key;
  SessionChoice choice;
  std::int32_t prompt = 0;   ///< index of its prompt
  std::int32_t index = 0;    ///< of the choice in the answer
  bool ended = false;        ///< the SCHEDULER has reported its end, or its tokens are not needed any more
  bool capped = false;       ///< its engine computes its prompt and one token, and ends it there
  bool handed_over = false;  ///< its engine is done with it, and another one is to go on
  bool opened = false;       ///< its first event was written
  std::int32_t sent_tokens = 0;    ///< in the events so far
  std::int64_t scored_chars = 0;   ///< of the text, up to the last score in the events so far
  std::int64_t last_token_ns = 0;  ///< when its newest tokens came; 0: none has
};

/// What an answer is made of.
struct AnswerContent {
  std::vector<SessionPrompt> prompts;
  /// Prompt by prompt, candidates() of each; the first is the leader.
  std::vector<SessionSequence> sequences;
  bool speculates = false;  ///< the usage tells of draft tokens

  bool finished() const;  ///< every choice is
};

/// One per session.
class AnswerWriter {
 public:
  AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;
  virtual ~AnswerWriter() = default;

  /// Appends what the client can be sent: of a stream the events that became ready, with those that end it
  /// once content.finished(); of a whole answer nothing before that, and then all of it. False when the slice
  /// was over before all of that was written: the next call goes on.
  virtual bool append(std::string& out, AnswerContent& content, const Slice& slice) = 0;

  /// Appends the events that end a stream, of which something was sent, with an error.
  virtual void append_failure(std::string& out, const Status& status) = 0;
};

/// The writer for the request's form. Both outlive it.
std::unique_ptr<AnswerWriter> make_answer_writer(const Ask& ask, const TokenTexts& texts);

/// max_tokens was 0: the one token that had to be sampled is not shown.
bool hides_output(const Ask& ask);

/// Tokens of the prompts and of the answer so far.
http::Usage usage_of(const Ask& ask, const AnswerContent& content);

}  // namespace troupe
