#pragma once
// Takes a model's output apart, token by token, into thoughts, text and tool calls.
#include <cstdint>
#include <string>
#include <string_view>

#include "text/parsers/answer_delta.h"
#include "text/parsers/answer_syntax.h"
#include "text/parsers/tool_call_scanner.h"

namespace troupe {

/// One per generated sequence. A delta holds only what no later token can change, so the deltas of an answer,
/// joined, do not depend on how its tokens arrive. Text that may still become a tag, and newlines that a
/// following tag would drop, wait for the next token.
class AnswerParser {
 public:
  /// `with_tools`: tool calls are looked for; else the tags of calls are text. `syntax` outlives this.
  AnswerParser(const AnswerSyntax& syntax, AnswerStart start, bool with_tools);

  /// Adds a token and the whole characters that it completes. For a tag's token, `text` holds only what was
  /// left of the tokens before it.
  void take(TokenId id, std::string_view text, AnswerDelta& out);

  /// The answer has ended: gives out what was held back.
  void finish(AnswerDelta& out);

  bool in_thoughts() const { return place_ == Place::thoughts; }
  std::int32_t calls() const { return calls_; }  ///< tool calls that have begun
  bool in_call() const { return place_ == Place::call; }

 private:
  enum class Place : std::uint8_t {
    thoughts,
    lead,            ///< behind the thoughts, nothing but newlines so far
    text,            ///< of the answer
    response_begin,  ///< directly behind <response>
    response,
    dropped,  ///< behind </response>
    call,     ///< between <tool_call> and </tool_call>
  };

  void take_text(std::string_view text, AnswerDelta& out);
  void take_tag(Tag tag, AnswerDelta& out);
  void take_thoughts(std::string_view text, AnswerDelta& out);
  void take_content(std::string_view text, AnswerDelta& out);
  void take_call(std::string_view text, AnswerDelta& out);
  void look_for_call(std::string_view text, AnswerDelta& out);
  std::string_view read_call(std::string_view text, AnswerDelta& out);
  void expect_call_end(std::string_view text, AnswerDelta& out);

  bool call_allowed() const;
  bool drops_lead() const;
  void begin_call();
  void end_call(AnswerDelta& out);
  void give_call(ToolCallScanner::Delta&& delta, AnswerDelta& out);
  void call_is_text(AnswerDelta& out);
  void flush_partial(AnswerDelta& out);

  const AnswerSyntax& syntax_;
  const bool with_tools_;
  const bool text_tags_;  ///< calls are looked for, and marked by text
  Place place_;
  std::string newlines_;       ///< held back: a tag that follows drops them
  std::string partial_;        ///< text_tags_: may be the begin of a tag
  bool has_text_ = false;      ///< there was text behind the thoughts, outside of calls
  bool call_as_text_ = false;  ///< a <tool_call> was given out as text: so will be its </tool_call>

  ToolCallScanner scanner_;
  std::string raw_;  ///< the call so far, with its tag if the answer has it, until its name is known
  std::int32_t calls_ = 0;
};

}  // namespace troupe
