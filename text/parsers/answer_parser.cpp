#include "text/parsers/answer_parser.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view kCallBegin = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";

/// Appends held + text to `out`, except for the last newlines, at most `most` of them, which become `held`.
void append_holding_newlines(std::string_view text, std::size_t most, std::string& held, std::string& out) {
  held += text;
  std::size_t keep = 0;
  while (keep < most && keep < held.size() && held[held.size() - 1 - keep] == '\n') ++keep;
  out.append(held, 0, held.size() - keep);
  held.erase(0, held.size() - keep);
}

/// Length of the longest suffix of `text` that `tag` begins with, but is not.
std::size_t partial_tag(std::string_view text, std::string_view tag) {
  for (std::size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (tag.starts_with(text.substr(text.size() - n))) return n;
  }
  return 0;
}

/// Without white space and the braces that some models close too often.
std::string_view behind_call(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \n\t\r}");
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

}  // namespace

AnswerParser::AnswerParser(const AnswerSyntax& syntax, AnswerStart start, bool with_tools)
    : syntax_(syntax),
      with_tools_(with_tools && syntax.tools() != ToolParser::none),
      text_tags_(with_tools_ && syntax.tool_tags_are_text()),
      place_(start == AnswerStart::thoughts              ? Place::thoughts
             : start == AnswerStart::response            ? Place::response_begin
             : start == AnswerStart::call && with_tools_ ? Place::call
                                                         : Place::lead) {}

void AnswerParser::take(TokenId id, std::string_view text, AnswerDelta& out) {
  if (!text.empty()) take_text(text, out);
  if (const Tag tag = syntax_.tag_of(id); tag != Tag::none) {
    if (place_ != Place::call) flush_partial(out);
    take_tag(tag, out);
  }
}

void AnswerParser::finish(AnswerDelta& out) {
  if (place_ == Place::call) {
    ToolCallScanner::Delta delta;
    scanner_.finish(delta);
    give_call(std::move(delta), out);
    if (scanner_.announced()) {
      partial_.clear();
      place_ = Place::lead;
    } else {
      call_is_text(out);
    }
  }
  flush_partial(out);
  if (place_ == Place::thoughts) {
    out.reasoning += newlines_;
  } else if (place_ != Place::lead || !drops_lead()) {
    out.content += newlines_;
  }
  newlines_.clear();
}

void AnswerParser::take_tag(Tag tag, AnswerDelta& out) {
  if (place_ == Place::dropped) return;
  if (place_ == Place::call && scanner_.inside_string()) {  // an argument that speaks of tags
    take_call(tag_text(tag), out);
    return;
  }
  if (place_ == Place::thoughts) {
    if (tag != Tag::think_end) return;
    newlines_.clear();
    place_ = Place::lead;
    return;
  }
  switch (tag) {
    case Tag::none:
    case Tag::think:
    case Tag::think_end: return;
    case Tag::response:
      if (place_ != Place::lead && place_ != Place::text) return;
      newlines_.clear();
      place_ = Place::response_begin;
      return;
    case Tag::response_end:
      if (place_ != Place::response && place_ != Place::response_begin) return;
      newlines_.clear();
      place_ = Place::dropped;
      return;
    case Tag::tool_call:
      if (place_ == Place::call) end_call(out);
      if (call_allowed()) {
        begin_call();
      } else {
        call_as_text_ = true;
        take_content(kCallBegin, out);
      }
      return;
    case Tag::tool_call_end:
      if (place_ == Place::call) end_call(out);
      if (std::exchange(call_as_text_, false)) take_content(kCallEnd, out);
      return;
  }
}

void AnswerParser::take_text(std::string_view text, AnswerDelta& out) {
  if (place_ == Place::dropped) return;
  if (place_ == Place::thoughts) {
    take_thoughts(text, out);
  } else if (place_ == Place::call) {
    take_call(text, out);
  } else if (text_tags_) {
    look_for_call(text, out);
  } else {
    take_content(text, out);
  }
}

/// ernie-x1 drops the newline before </think>.
void AnswerParser::take_thoughts(std::string_view text, AnswerDelta& out) {
  append_holding_newlines(text, syntax_.reasoning() == ReasoningParser::ernie_x1 ? 1 : 0, newlines_,
                          out.reasoning);
}

void AnswerParser::take_content(std::string_view text, AnswerDelta& out) {
  if (text.empty()) return;
  if (place_ == Place::lead) {
    const bool holds = drops_lead() || with_tools_;
    const std::size_t begin = holds ? std::min(text.find_first_not_of('\n'), text.size()) : 0;
    newlines_ += text.substr(0, begin);
    text.remove_prefix(begin);
    if (text.empty()) return;
    if (drops_lead()) newlines_.clear();
    place_ = Place::text;
  }
  has_text_ = true;
  if (place_ == Place::response_begin) {
    if (text.starts_with('\n')) text.remove_prefix(1);
    place_ = Place::response;
  }
  const std::size_t held = place_ == Place::response ? 1 : call_allowed() ? std::string::npos : 0;
  append_holding_newlines(text, held, newlines_, out.content);
}

/// The thoughts of these parsers are followed by newlines that belong to no part of the answer, and so are
/// calls.
bool AnswerParser::drops_lead() const {
  return calls_ > 0 || syntax_.reasoning() == ReasoningParser::ernie_x1 ||
         syntax_.reasoning() == ReasoningParser::ernie_45_vl_thinking;
}

bool AnswerParser::call_allowed() const {
  if (!with_tools_) return false;
  switch (syntax_.tools()) {
    case ToolParser::none: return false;
    case ToolParser::ernie_x1: return place_ == Place::lead || place_ == Place::text;
    case ToolParser::ernie_45_vl_thinking: return !has_text_;
    case ToolParser::hermes: return true;
  }
  return false;
}

/// text_tags_: text outside of calls.
void AnswerParser::look_for_call(std::string_view text, AnswerDelta& out) {
  std::string all = std::exchange(partial_, {}).append(text);
  const std::size_t at = all.find(kCallBegin);
  if (at == std::string::npos) {
    const std::size_t keep = partial_tag(all, kCallBegin);
    partial_ = all.substr(all.size() - keep);
    take_content(std::string_view(all).substr(0, all.size() - keep), out);
    return;
  }
  take_content(std::string_view(all).substr(0, at), out);
  begin_call();
  take_text(std::string_view(all).substr(at + kCallBegin.size()), out);
}

void AnswerParser::begin_call() {
  newlines_.clear();
  scanner_ = {};
  raw_ = kCallBegin;
  place_ = Place::call;
}

void AnswerParser::take_call(std::string_view text, AnswerDelta& out) {
  if (scanner_.state() == ToolCallScanner::State::open) text = read_call(text, out);
  if (text.empty()) return;
  if (place_ == Place::call) {
    expect_call_end(text, out);
  } else {
    take_text(text, out);
  }
}

/// Reads the call's JSON and returns the text behind it. The call has become text if it turned out to be
/// none.
std::string_view AnswerParser::read_call(std::string_view text, AnswerDelta& out) {
  using State = ToolCallScanner::State;
  while (!text.empty() && scanner_.state() == State::open) {
    std::size_t part = text.size();
    if (text_tags_) {
      // Outside of strings JSON has no '<': it begins a tag.
      if (text.front() == '<' && !scanner_.inside_string()) {
        if (!scanner_.announced()) break;
        ToolCallScanner::Delta delta;
        scanner_.finish(delta);
        give_call(std::move(delta), out);
        return text;
      }
      part = std::min(text.find('<', 1), text.size());
    }
    ToolCallScanner::Delta delta;
    const std::size_t read = scanner_.push(text.substr(0, part), delta);
    if (!scanner_.announced()) raw_ += text.substr(0, read);
    give_call(std::move(delta), out);
    text.remove_prefix(read);
  }
  const bool at_tag = scanner_.state() == State::open && !text.empty();
  if (at_tag || scanner_.state() == State::broken) call_is_text(out);
  return text;
}

/// Behind the JSON of a call: white space and the end tag. Other text ends the call too.
void AnswerParser::expect_call_end(std::string_view text, AnswerDelta& out) {
  std::string all = std::exchange(partial_, {});
  all += all.empty() ? behind_call(text) : text;
  if (all.empty()) return;
  if (text_tags_ && all.starts_with(kCallEnd)) {
    end_call(out);
    take_text(std::string_view(all).substr(kCallEnd.size()), out);
  } else if (text_tags_ && kCallEnd.starts_with(all)) {
    partial_ = std::move(all);
  } else {
    end_call(out);
    take_text(all, out);
  }
}

void AnswerParser::end_call(AnswerDelta& out) {
  ToolCallScanner::Delta delta;
  scanner_.finish(delta);
  give_call(std::move(delta), out);
  if (scanner_.announced()) {
    place_ = Place::lead;
  } else {
    call_is_text(out);
  }
}

void AnswerParser::give_call(ToolCallScanner::Delta&& delta, AnswerDelta& out) {
  if (!delta.name.empty()) {
    ++calls_;
    raw_.clear();
  }
  if (delta.name.empty() && delta.arguments.empty()) return;
  append_piece(out.calls, {calls_ - 1, std::move(delta.name), std::move(delta.arguments)});
}

/// What stands between the tags is no call: it belongs to the text.
void AnswerParser::call_is_text(AnswerDelta& out) {
  place_ = has_text_ ? Place::text : Place::lead;
  call_as_text_ = !text_tags_ && raw_.starts_with(kCallBegin);  // the tag may be the prompt's
  take_content(std::exchange(raw_, {}), out);
}

void AnswerParser::flush_partial(AnswerDelta& out) {
  if (!partial_.empty()) take_content(std::exchange(partial_, {}), out);
}

}  // namespace troupe
