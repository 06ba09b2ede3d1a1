#pragma once
// Answers of /v1/responses.
#include <string>
#include <string_view>

#include "actors/session/parts_writer.h"
#include "http/api/responses_answer.h"

namespace troupe {

class ResponsesWriter final : public PartsWriter {
 public:
  /// `ask` outlives this.
  explicit ResponsesWriter(const Ask& ask);

  void append_failure(std::string& out, const Status& status) override;

 private:
  void name(http::AnswerPart& part, const RequestKey& key) const override;
  void begin(std::string& out, const AnswerContent&) override { events_.begin(out); }
  void begin_part(std::string& out) override { events_.begin_part(out, last(), parts().back()); }
  void grow(std::string& out, std::string_view delta) override {
    events_.grow(out, last(), parts().back(), delta);
  }
  void end_part(std::string& out) override { events_.end_part(out, last(), parts().back()); }
  void end(std::string& out, const AnswerContent& content, http::FinishReason finish) override;
  void append_whole(std::string& out, const AnswerContent& content, http::FinishReason finish) override;

  const http::ResponseFrame frame_;
  http::ResponseEvents events_;
};

}  // namespace troupe
