#pragma once
// How a model marks thoughts, answer and tool calls in its output: what --reasoning-parser and
// --tool-call-parser name, resolved for one vocabulary. docs/thinking_and_tools.md says what each parser
// does.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {

enum class ReasoningParser : std::uint8_t { none, ernie_x1, ernie_45_vl, ernie_45_vl_thinking };
enum class ToolParser : std::uint8_t { none, ernie_x1, ernie_45_vl_thinking, hermes };

/// A marker in an answer.
enum class Tag : std::uint8_t { none, think, think_end, response, response_end, tool_call, tool_call_end };
inline constexpr std::size_t kTags = 7;  ///< with none

/// As the model spells it: "<think>"; empty for none.
std::string_view tag_text(Tag tag);

/// Where an answer begins.
enum class AnswerStart : std::uint8_t {
  thoughts,  ///< inside of them
  answer,    ///< behind them, or there are none
  response,  ///< behind a <response> that the prompt has opened
  call,      ///< behind a <tool_call> that the prompt has opened
};

/// The text before the </think> that ends thoughts at their limit; empty without a reasoning parser.
/// `given` has to contain that tag and is cut before it; empty: the parser's own text.
Result<std::string> thinking_end_text(std::string_view reasoning, std::string_view given);

/// Immutable after make(); any number of threads may use one.
class AnswerSyntax {
 public:
  /// Answers are plain text.
  AnswerSyntax() = default;

  /// `reasoning`: "", "ernie-x1", "ernie-45-vl" or "ernie-45-vl-thinking"; `tools`: "", "none", "ernie-x1",
  /// "ernie-45-vl-thinking" or "hermes". `thinking_end`: the tokens of thinking_end_text(). An unknown name,
  /// or a tag that the vocabulary does not have as one token, is an error that names flag and tag.
  static Result<AnswerSyntax> make(std::string_view reasoning, std::string_view tools,
                                   const TokenTexts& texts, std::vector<TokenId> thinking_end = {});

  /// Neither thoughts nor calls are looked for.
  bool plain() const { return reasoning_ == ReasoningParser::none && tools_ == ToolParser::none; }
  ReasoningParser reasoning() const { return reasoning_; }
  ToolParser tools() const { return tools_; }

  /// The tag that a token is. A tag that the parsers do not look for is none.
  Tag tag_of(TokenId id) const;
  /// The token of a tag; -1: the vocabulary has none, or the parsers do not look for it.
  TokenId token_of(Tag tag) const { return tokens_[static_cast<std::size_t>(tag)]; }

  /// Tool calls are marked by text, because the vocabulary has no tokens for their tags.
  bool tool_tags_are_text() const { return tools_ == ToolParser::hermes && token_of(Tag::tool_call) < 0; }

  /// By the last tag in the prompt; without one, a model with a reasoning parser begins with thoughts.
  AnswerStart start_after(std::span<const TokenId> prompt) const;

  /// Tokens that end thoughts at their limit; the last is </think>. Empty without a reasoning parser.
  const std::vector<TokenId>& forced_end() const { return forced_end_; }

 private:
  ReasoningParser reasoning_ = ReasoningParser::none;
  ToolParser tools_ = ToolParser::none;
  TokenId tokens_[kTags] = {-1, -1, -1, -1, -1, -1, -1};
  std::vector<TokenId> forced_end_;
};

}  // namespace troupe
