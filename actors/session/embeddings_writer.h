#pragma once
// Answers of /v1/embeddings: an embedding for each prompt.
#include <cstddef>
#include <string>

#include "actors/session/answer_writer.h"

namespace troupe {

class EmbeddingsWriter final : public AnswerWriter {
 public:
  /// `ask` outlives this.
  explicit EmbeddingsWriter(const Ask& ask) : ask_(ask) {}

  bool append(std::string& out, AnswerContent& content, const Slice& slice) override;
  /// Such answers are never streamed.
  void append_failure(std::string&, const Status&) override {}

 private:
  const Ask& ask_;
  std::size_t written_ = 0;  // embeddings in what was appended so far
};

}  // namespace troupe
