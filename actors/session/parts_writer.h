#pragma once
// Answers that consist of parts in the order in which the model wrote them: thoughts, texts, calls. They have
// one choice.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "actors/session/answer_writer.h"
#include "http/api/answer_part.h"

namespace troupe {

class PartsWriter : public AnswerWriter {
 public:
  /// `ask` outlives this.
  explicit PartsWriter(const Ask& ask) : ask_(ask) {}

  bool append(std::string& out, AnswerContent& content, const Slice& slice) final;

 protected:
  /// Sets the ids of a part that begins; its place is parts().size().
  virtual void name(http::AnswerPart& part, const RequestKey& key) const = 0;

  // A stream: begin(); then begin_part(), grow() and end_part() for the last of parts(), part by part; then
  // end().
  virtual void begin(std::string& out, const AnswerContent& content) = 0;
  virtual void begin_part(std::string& out) = 0;
  virtual void grow(std::string& out, std::string_view delta) = 0;
  virtual void end_part(std::string& out) = 0;
  virtual void end(std::string& out, const AnswerContent& content, http::FinishReason finish) = 0;

  /// The whole answer.
  virtual void append_whole(std::string& out, const AnswerContent& content, http::FinishReason finish) = 0;

  const Ask& ask() const { return ask_; }
  const std::vector<http::AnswerPart>& parts() const { return parts_; }
  std::size_t last() const { return parts_.size() - 1; }

 private:
  void take(std::string& out, const SessionSequence& sequence, ChoiceDelta&& delta);
  void add(std::string& out, const RequestKey& key, http::AnswerPart::Kind kind, std::string_view text);
  void add_call(std::string& out, const RequestKey& key, ToolCallPiece&& piece);
  void extend(std::string& out, std::string_view text);
  void open(std::string& out, const RequestKey& key, http::AnswerPart&& part);
  void close(std::string& out, bool complete);
  bool streams() const { return ask_.answer.stream; }

  const Ask& ask_;
  std::vector<http::AnswerPart> parts_;
  bool begun_ = false;  ///< begin() was called
  bool open_ = false;   ///< the last part may grow
};

}  // namespace troupe
