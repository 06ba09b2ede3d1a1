#pragma once
// Answers of /v1/messages.
#include <string>
#include <string_view>

#include "actors/session/parts_writer.h"
#include "http/api/messages_answer.h"

namespace troupe {

class MessagesWriter final : public PartsWriter {
 public:
  using PartsWriter::PartsWriter;

  void append_failure(std::string& out, const Status& status) override;

 private:
  void name(http::AnswerPart& part, const RequestKey& key) const override;
  void begin(std::string& out, const AnswerContent& content) override;
  void begin_part(std::string& out) override { http::append_block_start(out, last(), parts().back()); }
  void grow(std::string& out, std::string_view delta) override {
    http::append_block_delta(out, last(), parts().back().kind, delta);
  }
  void end_part(std::string& out) override { http::append_block_stop(out, last()); }
  void end(std::string& out, const AnswerContent& content, http::FinishReason finish) override;
  void append_whole(std::string& out, const AnswerContent& content, http::FinishReason finish) override;
};

}  // namespace troupe
