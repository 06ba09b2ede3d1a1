#include "text/parsers/answer_syntax.h"

#include <initializer_list>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view kTagTexts[kTags] = {
    "", "<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"};

/// A parser's name, the tags without which it cannot work, and those that it uses where they exist.
template <class Parser>
struct ParserRow {
  std::string_view name;
  Parser parser;
  std::initializer_list<Tag> required;
  std::initializer_list<Tag> optional;
};

constexpr std::initializer_list<Tag> kNoTags = {};
constexpr auto kAllTags = {Tag::think,        Tag::think_end, Tag::response,
                           Tag::response_end, Tag::tool_call, Tag::tool_call_end};
constexpr auto kThinkEnd = {Tag::think_end};
constexpr auto kThink = {Tag::think};
constexpr auto kToolTags = {Tag::tool_call, Tag::tool_call_end};
constexpr auto kResponseTags = {Tag::response, Tag::response_end};

constexpr ParserRow<ReasoningParser> kReasoningParsers[] = {
    {"none", ReasoningParser::none, kNoTags, kNoTags},
    {"ernie-x1", ReasoningParser::ernie_x1, kAllTags, kNoTags},
    {"ernie-45-vl", ReasoningParser::ernie_45_vl, kThinkEnd, kThink},
    {"ernie-45-vl-thinking", ReasoningParser::ernie_45_vl_thinking, kThinkEnd, kThink},
};
constexpr ParserRow<ToolParser> kToolParsers[] = {
    {"none", ToolParser::none, kNoTags, kNoTags},
    {"ernie-x1", ToolParser::ernie_x1, kToolTags, kResponseTags},
    {"ernie-45-vl-thinking", ToolParser::ernie_45_vl_thinking, kToolTags, kNoTags},
    {"hermes", ToolParser::hermes, kNoTags, kToolTags},
};

template <class Parser, std::size_t N>
const ParserRow<Parser>* find_row(const ParserRow<Parser> (&rows)[N], std::string_view name) {
  for (const auto& row : rows) {
    if (row.name == (name.empty() ? "none" : name)) return &row;
  }
  return nullptr;
}

Status unknown_parser(const std::string& flag, std::string_view name) {
  return invalid("--" + flag + ": there is no parser \"" + std::string(name) + "\"", flag);
}

}  // namespace

std::string_view tag_text(Tag tag) { return kTagTexts[static_cast<std::size_t>(tag)]; }

Result<std::string> thinking_end_text(std::string_view reasoning, std::string_view given) {
  const auto* row = find_row(kReasoningParsers, reasoning);
  if (row == nullptr) return unknown_parser("reasoning-parser", reasoning);
  if (row->parser == ReasoningParser::none) return std::string();
  if (given.empty()) return std::string(row->parser == ReasoningParser::ernie_x1 ? "\n" : "");
  const std::size_t at = given.find(tag_text(Tag::think_end));
  if (at == given.npos) {
    return invalid("FD_LIMIT_THINKING_CONTENT_TRUNCATE_STR: got \"" + std::string(given.substr(0, 80)) +
                       "\", expected a text that contains </think>",
                   "thinking-end-text");
  }
  return std::string(given.substr(0, at));
}

Result<AnswerSyntax> AnswerSyntax::make(std::string_view reasoning, std::string_view tools,
                                        const TokenTexts& texts, std::vector<TokenId> thinking_end) {
  AnswerSyntax syntax;
  const auto take = [&](const auto& row, const std::string& flag) -> Status {
    for (const Tag tag : row.required) {
      const auto id = texts.token_id(tag_text(tag));
      if (!id) {
        return invalid("--" + flag + " " + std::string(row.name) + " needs the token " +
                           std::string(tag_text(tag)) +
                           ", which this model's vocabulary does not have: choose another parser or none",
                       flag, "missing_tag");
      }
      syntax.tokens_[static_cast<std::size_t>(tag)] = *id;
    }
    for (const Tag tag : row.optional) {
      if (const auto id = texts.token_id(tag_text(tag))) syntax.tokens_[static_cast<std::size_t>(tag)] = *id;
    }
    return {};
  };

  const auto* reasoning_row = find_row(kReasoningParsers, reasoning);
  if (reasoning_row == nullptr) return unknown_parser("reasoning-parser", reasoning);
  const auto* tool_row = find_row(kToolParsers, tools);
  if (tool_row == nullptr) return unknown_parser("tool-call-parser", tools);
  if (Status status = take(*reasoning_row, "reasoning-parser"); !status.ok()) return status;
  if (Status status = take(*tool_row, "tool-call-parser"); !status.ok()) return status;
  syntax.reasoning_ = reasoning_row->parser;
  syntax.tools_ = tool_row->parser;
  if (syntax.reasoning_ == ReasoningParser::none) return syntax;
  syntax.forced_end_ = std::move(thinking_end);
  syntax.forced_end_.push_back(syntax.token_of(Tag::think_end));
  return syntax;
}

Tag AnswerSyntax::tag_of(TokenId id) const {
  if (id < 0) return Tag::none;
  for (std::size_t i = 1; i < kTags; ++i) {
    if (tokens_[i] == id) return static_cast<Tag>(i);
  }
  return Tag::none;
}

AnswerStart AnswerSyntax::start_after(std::span<const TokenId> prompt) const {
  for (auto id = prompt.rbegin(); id != prompt.rend(); ++id) {
    switch (tag_of(*id)) {
      case Tag::none: break;
      case Tag::think:
        return reasoning_ == ReasoningParser::none ? AnswerStart::answer : AnswerStart::thoughts;
      case Tag::response: return AnswerStart::response;
      case Tag::think_end:
      case Tag::response_end: return AnswerStart::answer;
      case Tag::tool_call:
      case Tag::tool_call_end:
        if (tools_ == ToolParser::hermes) break;  // its templates show these tags in their instructions
        return tag_of(*id) == Tag::tool_call ? AnswerStart::call : AnswerStart::answer;
    }
  }
  return reasoning_ == ReasoningParser::none ? AnswerStart::answer : AnswerStart::thoughts;
}

}  // namespace troupe
