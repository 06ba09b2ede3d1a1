// The behaviour of each parser as a table, and that no row depends on how its tokens arrive.
#include "text/parsers/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "support/byte_tokenizer.h"
#include "text/parsers/choose_syntax.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {
namespace {

using testing::ByteTokenizer;

const std::vector<std::string> kTagPieces = {"<think>",     "</think>",    "<response>",
                                             "</response>", "<tool_call>", "</tool_call>"};

const ByteTokenizer& tagged() {
  static const ByteTokenizer tokenizer(kTagPieces);
  return tokenizer;
}

AnswerSyntax syntax_of(const std::string& reasoning, const std::string& tools,
                       const Tokenizer& tokenizer = tagged()) {
  config::AnswerOptions options{.reasoning_parser = reasoning, .tool_call_parser = tools};
  options.found_thinking_end = *encode_thinking_end(options, tokenizer);
  auto syntax = choose_syntax(options, tokenizer, nullptr);
  EXPECT_TRUE(syntax.ok()) << syntax.status().message;
  return syntax.ok() ? *syntax : AnswerSyntax();
}

/// Feeds tokens as a session does, and joins what comes out.
class Feed {
 public:
  Feed(const AnswerSyntax& syntax, AnswerStart start, bool with_tools)
      : parser_(syntax, start, with_tools), syntax_(syntax) {}

  void token(TokenId id, const std::string& text) {
    AnswerDelta delta;
    parser_.take(id, syntax_.tag_of(id) == Tag::none ? text : std::string(), delta);
    add(delta);
  }
  void end() {
    AnswerDelta delta;
    parser_.finish(delta);
    add(delta);
  }
  const AnswerDelta& answer() const { return answer_; }
  const AnswerParser& parser() const { return parser_; }

 private:
  void add(const AnswerDelta& delta) {
    answer_.reasoning += delta.reasoning;
    answer_.content += delta.content;
    for (ToolCallPiece piece : delta.calls) append_piece(answer_.calls, std::move(piece));
  }

  AnswerParser parser_;
  const AnswerSyntax& syntax_;
  AnswerDelta answer_;
};

/// A part of an answer: a tag's token, or text.
struct Part {
  TokenId id;
  std::string text;
};

/// The parts of an answer as a model with these tags writes it.
std::vector<Part> parts_of(const std::string& answer, const Tokenizer& tokenizer = tagged()) {
  std::vector<Part> parts;
  for (const TokenId id : tokenizer.encode(answer, SpecialTokens::parse)) {
    const bool special = tokenizer.is_special(id);
    if (special || parts.empty() || parts.back().id != 'x')
      parts.push_back({special ? id : TokenId{'x'}, {}});
    if (!special) parts.back().text += tokenizer.token_bytes(id);
  }
  return parts;
}

AnswerDelta parsed(const AnswerSyntax& syntax, AnswerStart start, bool with_tools,
                   const std::vector<Part>& parts) {
  Feed feed(syntax, start, with_tools);
  for (const Part& part : parts) feed.token(part.id, part.text);
  feed.end();
  return feed.answer();
}

std::string shown(const AnswerDelta& answer) {
  std::string out = "reasoning=" + answer.reasoning + "|content=" + answer.content;
  for (const ToolCallPiece& call : answer.calls) {
    out += "|" + std::to_string(call.index) + ":" + call.name + "(" + call.arguments + ")";
  }
  return out;
}

struct Row {
  const char* what;
  const char* reasoning;
  const char* tools;
  AnswerStart start;
  const char* answer;
  AnswerDelta expected;
};

constexpr auto kThoughts = AnswerStart::thoughts;
constexpr auto kAnswer = AnswerStart::answer;
constexpr auto kResponse = AnswerStart::response;
constexpr auto kCall = AnswerStart::call;
const char kCallF[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

// clang-format off
const Row kRows[] = {
    // ernie-45-vl: nothing is trimmed
    {"split", "ernie-45-vl", "", kThoughts, "why\n</think>\n\nhello", {"why\n", "\n\nhello", {}}},
    {"never closed", "ernie-45-vl", "", kThoughts, "why", {"why", "", {}}},
    {"closed in the prompt", "ernie-45-vl", "", kAnswer, "\nhello", {"", "\nhello", {}}},
    {"lone tags", "ernie-45-vl", "", kAnswer, "a<think>b</think>c", {"", "abc", {}}},

    // ernie-45-vl-thinking
    {"split", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts,
     "why\n</think>\n\nhello\n",
     {"why\n", "hello\n", {}}},
    {"never closed", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts, "why", {"why", "", {}}},
    {"only newlines", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts,
     "why</think>\n\n",
     {"why", "", {}}},
    {"a call", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts,
     "why</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n",
     {"why", "", {{0, "f", "{}"}}}},
    {"text before a call makes it text", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts,
     "why</think>So:\n<tool_call>{\"name\": \"f\"}</tool_call>",
     {"why", "So:\n<tool_call>{\"name\": \"f\"}</tool_call>", {}}},
    {"a call in the thoughts is none", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kThoughts,
     "hm<tool_call>{\"name\": \"f\"}</tool_call></think>ok",
     {"hm{\"name\": \"f\"}", "ok", {}}},
    {"prompt without thoughts", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kAnswer,
     kCallF,
     {"", "", {{0, "f", "{\"a\": 1}"}}}},

    // ernie-x1
    {"response", "ernie-x1", "ernie-x1", kThoughts,
     "why\n</think>\n\n<response>\na\n\nb\n</response>\n",
     {"why", "a\n\nb", {}}},
    {"only one newline goes", "ernie-x1", "ernie-x1", kThoughts,
     "why\n\n</think><response>\n\na\n\n</response>",
     {"why\n", "\na\n", {}}},
    {"never closed", "ernie-x1", "ernie-x1", kThoughts, "why\n", {"why\n", "", {}}},
    {"response never closed", "ernie-x1", "ernie-x1", kThoughts,
     "why</think><response>\nhalf\n",
     {"why", "half\n", {}}},
    {"behind the response", "ernie-x1", "ernie-x1", kThoughts,
     "why</think><response>a</response>b<tool_call>{\"name\": \"f\"}</tool_call>",
     {"why", "a", {}}},
    {"without response tags", "ernie-x1", "ernie-x1", kThoughts,
     "why\n</think>\n{\"a\": 1}",
     {"why", "{\"a\": 1}", {}}},
    {"only newlines", "ernie-x1", "ernie-x1", kThoughts, "why</think>\n\n", {"why", "", {}}},
    {"a call", "ernie-x1", "ernie-x1", kThoughts,
     "why\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
     "\"}{<tool_call></tool_call><think>\"}}\n</tool_call>\n",
     {"why", "", {{0, "f", "{\"a\": \"}{<tool_call></tool_call><think>\"}"}}}},
    {"calls in parallel", "ernie-x1", "ernie-x1", kThoughts,
     "w</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
     "1}}\n</tool_call>\n<tool_call>\n{\"name\": "
     "\"g\", \"arguments\": {\"b\": [\"]\", {}]}}\n</tool_call>\n",
     {"w", "", {{0, "f", "{\"a\": 1}"}, {1, "g", "{\"b\": [\"]\", {}]}"}}}},
    {"cut in a call", "ernie-x1", "ernie-x1", kThoughts,
     "w</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
     {"w", "", {{0, "f", "{\"a\": \"b"}}}},
    {"cut before the name", "ernie-x1", "ernie-x1", kThoughts,
     "w</think><tool_call>{\"na",
     {"w", "<tool_call>{\"na", {}}},
    {"no call at all", "ernie-x1", "ernie-x1", kThoughts,
     "w</think><tool_call>oh</tool_call>",
     {"w", "<tool_call>oh</tool_call>", {}}},
    {"a call without its end tag", "ernie-x1", "ernie-x1", kThoughts,
     "w</think><tool_call>{\"name\": \"f\"}<tool_call>{\"name\": \"g\"}",
     {"w", "", {{0, "f", "{}"}, {1, "g", "{}"}}}},
    {"a call in a response is text", "ernie-x1", "ernie-x1", kThoughts,
     "w</think><response>a<tool_call>b</tool_call></response>",
     {"w", "a<tool_call>b</tool_call>", {}}},
    {"text before a call", "ernie-x1", "ernie-x1", kThoughts,
     "w</think>\nLet me see.\n<tool_call>{\"name\": \"f\"}</tool_call>",
     {"w", "Let me see.", {{0, "f", "{}"}}}},
    {"response opened by the prompt", "ernie-x1", "ernie-x1", kResponse, "\na\n</response>", {"", "a", {}}},
    {"tool parser alone", "", "ernie-x1", kAnswer,
     "Hi\n<tool_call>{\"name\": \"f\"}</tool_call>",
     {"", "Hi", {{0, "f", "{}"}}}},
    {"reasoning parser alone", "ernie-x1", "", kThoughts,
     "w</think><tool_call>{}</tool_call>",
     {"w", "<tool_call>{}</tool_call>", {}}},

    // calls that the prompt has opened
    {"a call opened by the prompt", "ernie-x1", "ernie-x1", kCall,
     "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n",
     {"", "", {{0, "f", "{\"a\": 1}"}}}},
    {"a call opened by the prompt, and another", "ernie-x1", "ernie-x1", kCall,
     "{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
     {"", "", {{0, "f", "{}"}, {1, "g", "{}"}}}},
    {"a call opened by the prompt", "ernie-45-vl-thinking", "ernie-45-vl-thinking", kCall,
     "{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
     {"", "", {{0, "f", "{}"}}}},
    {"a call opened by the prompt and by the answer", "ernie-x1", "ernie-x1", kCall,
     "\n<tool_call>{\"name\": \"f\"}</tool_call>",
     {"", "", {{0, "f", "{}"}}}},
    {"a call opened by the prompt that is none", "ernie-x1", "ernie-x1", kCall,
     "\nno </tool_call>more",
     {"", "no more", {}}},
    {"a call opened by the prompt and cut", "ernie-x1", "ernie-x1", kCall,
     "{\"name\": \"f\", \"arguments\": {\"a",
     {"", "", {{0, "f", "{\"a"}}}},
    {"a call opened by the prompt, without a tool parser", "ernie-x1", "", kCall, "{}</tool_call>", {"", "{}", {}}},

    // what models get wrong in a call's JSON
    {"no outer braces", "", "ernie-x1", kAnswer,
     "<tool_call>\"name\": \"f\", \"arguments\": {\"a\": {}}</tool_call>",
     {"", "", {{0, "f", "{\"a\": {}}"}}}},
    {"arguments first", "", "ernie-x1", kAnswer,
     "<tool_call>{\"arguments\": {\"a\": \"\\\"}\"}, \"name\": \"f\"}</tool_call>",
     {"", "", {{0, "f", "{\"a\": \"\\\"}\"}"}}}},
    {"arguments are no object", "", "ernie-x1", kAnswer,
     "<tool_call>{\"name\": \"f\", \"arguments\": [1, {}]}</tool_call>",
     {"", "", {{0, "f", "{}"}}}},
    {"other keys", "", "ernie-x1", kAnswer,
     "<tool_call>{\"id\": 7, \"x\": {\"name\": \"no\"}, \"name\": \"f\\u0021\", \"y\": null, \"arguments\": "
     "{}}</tool_call>",
     {"", "", {{0, "f!", "{}"}}}},
    {"no name", "", "ernie-x1", kAnswer,
     "<tool_call>{\"arguments\": {}}</tool_call>",
     {"", "<tool_call>{\"arguments\": {}}</tool_call>", {}}},
    {"a name that is no string", "", "ernie-x1", kAnswer,
     "<tool_call>{\"name\": 5}</tool_call>",
     {"", "<tool_call>{\"name\": 5}</tool_call>", {}}},
    {"a brace too many", "", "ernie-x1", kAnswer,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>",
     {"", "", {{0, "f", "{}"}}}},
    {"text behind the object", "", "ernie-x1", kAnswer,
     "<tool_call>{\"name\": \"f\"} and</tool_call>",
     {"", "and", {{0, "f", "{}"}}}},

    // hermes, with tags that are tokens
    {"tokens", "", "hermes", kAnswer,
     "Hi\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
     {"", "Hi", {{0, "f", "{}"}}}},
    {"thoughts and hermes", "ernie-45-vl", "hermes", kThoughts,
     "w</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>",
     {"w", "", {{0, "f", "{}"}}}},
};
// clang-format on

TEST(AnswerParser, TheBehaviourMatrix) {
  for (const Row& row : kRows) {
    const AnswerSyntax syntax = syntax_of(row.reasoning, row.tools);
    EXPECT_EQ(shown(parsed(syntax, row.start, true, parts_of(row.answer))), shown(row.expected))
        << row.reasoning << "/" << row.tools << ": " << row.what;
  }
}

// clang-format off
const Row kTextRows[] = {
    // hermes without tokens for its tags
    {"a call", "", "hermes", kAnswer,
     "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>",
     {"", "Sure.", {{0, "f", "{\"a\": \"</tool_call>\"}"}}}},
    {"calls in parallel", "", "hermes", kAnswer,
     "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call> done",
     {"", " done", {{0, "f", "{}"}, {1, "g", "{}"}}}},
    {"almost a tag", "", "hermes", kAnswer, "a <tool_cal <tool_ca", {"", "a <tool_cal <tool_ca", {}}},
    {"unbalanced", "", "hermes", kAnswer,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>",
     {"", "", {{0, "f", "{\"a\": 1}"}}}},
    {"no JSON", "", "hermes", kAnswer, "<tool_call>oh</tool_call>", {"", "<tool_call>oh</tool_call>", {}}},
    {"a tag within a tag", "", "hermes", kAnswer,
     "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
     {"", "<tool_call>", {{0, "f", "{}"}}}},
    {"cut in the end tag", "", "hermes", kAnswer,
     "<tool_call>{\"name\": \"f\"}\n</tool",
     {"", "", {{0, "f", "{}"}}}},
    {"newlines at the end stay", "", "hermes", kAnswer, "a\n\n", {"", "a\n\n", {}}},
};
// clang-format on

TEST(AnswerParser, HermesFindsItsTagsInTextWhereThereAreNoTokens) {
  const ByteTokenizer plain;
  for (const Row& row : kTextRows) {
    const AnswerSyntax syntax = syntax_of(row.reasoning, row.tools, plain);
    EXPECT_TRUE(syntax.tool_tags_are_text());
    EXPECT_EQ(shown(parsed(syntax, row.start, true, parts_of(row.answer, plain))), shown(row.expected))
        << row.what;
  }
}

TEST(AnswerParser, WithoutToolsInTheRequestCallsAreText) {
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(
      shown(parsed(syntax_of("ernie-x1", "ernie-x1"), kThoughts, false, parts_of("w</think>\n" + call))),
      shown({"w", call, {}}));
  const ByteTokenizer plain;
  EXPECT_EQ(shown(parsed(syntax_of("", "hermes", plain), kAnswer, false, parts_of(call, plain))),
            shown({"", call, {}}));
}

TEST(AnswerParser, ATagSpelledInOrdinaryTokensIsText) {
  const AnswerSyntax syntax = syntax_of("ernie-x1", "ernie-x1");
  EXPECT_EQ(shown(parsed(syntax, kThoughts, true, {{'x', "a</think><tool_call>b"}})),
            shown({"a</think><tool_call>b", "", {}}));
}

/// Random answers of everything that can matter, many of them senseless.
std::vector<Part> random_parts(std::mt19937& random, bool tags_are_tokens) {
  static const char* const kTexts[] = {"why",
                                       "\n",
                                       "\n\n",
                                       " ",
                                       "a\nb",
                                       "{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\\\"\"]}}",
                                       "{\"name\": \"f\"}",
                                       "{\"arguments\": {\"q\": \"</tool_call>\"}, \"name\": \"g\"}",
                                       "\"name\":\"h\"",
                                       "{\"name\": 1}",
                                       "<",
                                       "</tool",
                                       "_call>",
                                       "é你",
                                       "{",
                                       "}",
                                       "\"",
                                       "\\",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "}\n"};
  std::vector<Part> parts;
  const int n = std::uniform_int_distribution<int>(0, 14)(random);
  for (int i = 0; i < n; ++i) {
    const int pick = std::uniform_int_distribution<int>(0, 29)(random);
    if (tags_are_tokens && pick < 10) {
      const auto tag = static_cast<std::size_t>(pick % 6);
      parts.push_back({static_cast<TokenId>(258 + tag), kTagPieces[tag]});
    } else {
      parts.push_back({'x', kTexts[static_cast<std::size_t>(pick) % std::size(kTexts)]});
    }
  }
  return parts;
}

/// The same text in other tokens: joined as far as possible, or cut anywhere between characters.
std::vector<Part> cut_anew(const std::vector<Part>& parts, std::mt19937& random) {
  std::vector<Part> out;
  for (const Part& part : parts) {
    if (part.id != 'x') {
      out.push_back(part);
      continue;
    }
    for (std::size_t at = 0; at < part.text.size();) {
      std::size_t end = at + 1;
      while (end < part.text.size() &&
             ((part.text[end] & 0xC0) == 0x80 || std::uniform_int_distribution<int>(0, 3)(random) > 0)) {
        ++end;
      }
      out.push_back({'x', part.text.substr(at, end - at)});
      at = end;
    }
  }
  return out;
}

std::vector<Part> joined(const std::vector<Part>& parts) {
  std::vector<Part> out;
  for (const Part& part : parts) {
    if (part.id == 'x' && !out.empty() && out.back().id == 'x') {
      out.back().text += part.text;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

TEST(AnswerParser, StreamedEqualsWholeForEverySplit) {
  const ByteTokenizer plain;
  struct Pair {
    const char* reasoning;
    const char* tools;
    bool tokens;
  };
  const Pair pairs[] = {
      {"ernie-x1", "ernie-x1", true}, {"ernie-45-vl-thinking", "ernie-45-vl-thinking", true},
      {"ernie-45-vl", "", true},      {"ernie-45-vl", "hermes", true},
      {"", "hermes", false},          {"", "ernie-x1", true}};
  std::mt19937 random(14);
  for (int i = 0; i < 30'000; ++i) {
    const Pair& pair = pairs[static_cast<std::size_t>(i) % std::size(pairs)];
    const AnswerSyntax syntax = syntax_of(pair.reasoning, pair.tools, pair.tokens ? tagged() : plain);
    const std::vector<Part> parts = random_parts(random, pair.tokens);
    const auto start = static_cast<AnswerStart>(std::uniform_int_distribution<int>(0, 2)(random));
    const bool with_tools = i % 5 != 0;
    const AnswerDelta whole = parsed(syntax, start, with_tools, joined(parts));
    const std::string expected = shown(whole);
    std::string input;
    for (const Part& part : parts) input += part.text;
    EXPECT_EQ(shown(parsed(syntax, start, with_tools, parts)), expected) << input;
    ASSERT_EQ(shown(parsed(syntax, start, with_tools, cut_anew(parts, random))), expected) << input;
    for (std::size_t c = 0; c < whole.calls.size(); ++c) {  // one piece a call, in order, each with a name
      EXPECT_EQ(whole.calls[c].index, static_cast<std::int32_t>(c)) << input;
      EXPECT_FALSE(whole.calls[c].name.empty()) << input;
    }
  }
}

TEST(AnswerParser, GivesOutWhatIsCertainAtOnce) {
  const AnswerSyntax syntax = syntax_of("ernie-x1", "ernie-x1");
  Feed feed(syntax, kThoughts, true);
  feed.token('x', "why\n");
  EXPECT_EQ(feed.answer().reasoning, "why");
  feed.token('x', "not");
  EXPECT_EQ(feed.answer().reasoning, "why\nnot");
  feed.token(syntax.token_of(Tag::think_end), "");
  feed.token(syntax.token_of(Tag::tool_call), "");
  feed.token('x', "\n{\"name\": \"get");
  EXPECT_TRUE(feed.answer().calls.empty());
  feed.token('x', "\", \"arguments\": {\"ci");
  EXPECT_EQ(shown(feed.answer()), "reasoning=why\nnot|content=|0:get({\"ci)");
  feed.token('x', "ty\": \"Pa");
  EXPECT_EQ(feed.answer().calls[0].arguments, "{\"city\": \"Pa");
}

TEST(AnswerSyntax, AnswersBeginWhereThePromptsLastTagSays) {
  const AnswerSyntax x1 = syntax_of("ernie-x1", "ernie-x1");
  const auto after = [&](const AnswerSyntax& syntax, const std::string& prompt) {
    return syntax.start_after(tagged().encode(prompt, SpecialTokens::parse));
  };
  EXPECT_EQ(after(x1, "<think>a</think><response>b</response>q<think>\n"), AnswerStart::thoughts);
  EXPECT_EQ(after(x1, "q<think>\n\n</think>\n\n"), AnswerStart::answer);
  EXPECT_EQ(after(x1, "q<think></think><response>\n"), AnswerStart::response);
  EXPECT_EQ(after(x1, "q<response>a</response>"), AnswerStart::answer);
  EXPECT_EQ(after(x1, "q<think></think><tool_call>\n"), AnswerStart::call);
  EXPECT_EQ(after(x1, "q<tool_call>{}</tool_call>\n"), AnswerStart::answer);
  EXPECT_EQ(after(syntax_of("", "ernie-45-vl-thinking"), "q<tool_call>"), AnswerStart::call);
  EXPECT_EQ(after(x1, "no tag"), AnswerStart::thoughts);
  EXPECT_EQ(after(x1, ""), AnswerStart::thoughts);
  EXPECT_EQ(after(syntax_of("", "hermes"), "<tool_call>"), AnswerStart::answer);
  EXPECT_EQ(after(syntax_of("ernie-45-vl", "hermes"), "in <tool_call></tool_call> tags"),
            AnswerStart::thoughts);
}

TEST(AnswerSyntax, AMissingTagIsNamed) {
  const ByteTokenizer without({"<think>", "</think>", "<response>", "</response>", "<tool_call>"});
  const auto x1 = AnswerSyntax::make("ernie-x1", "", without);
  ASSERT_FALSE(x1.ok());
  EXPECT_EQ(x1.status().param, "reasoning-parser");
  EXPECT_NE(x1.status().message.find("ernie-x1 needs the token </tool_call>"), std::string::npos)
      << x1.status().message;
  EXPECT_TRUE(AnswerSyntax::make("ernie-45-vl", "hermes", without).ok());
  EXPECT_FALSE(AnswerSyntax::make("", "ernie-45-vl-thinking", without).ok());
  EXPECT_FALSE(AnswerSyntax::make("ernie-45-vl", "", ByteTokenizer()).ok());
  EXPECT_FALSE(AnswerSyntax::make("ernie-x2", "", tagged()).ok());
  EXPECT_TRUE(AnswerSyntax::make("", "", ByteTokenizer()).ok());
}

TEST(AnswerSyntax, TheTextThatEndsThoughtsIsCutBehindTheTag) {
  const TokenId end = *tagged().token_id("</think>");
  EXPECT_EQ(syntax_of("ernie-x1", "").forced_end(), (std::vector<TokenId>{'\n', end}));
  EXPECT_EQ(syntax_of("ernie-45-vl", "").forced_end(), std::vector<TokenId>{end});
  EXPECT_TRUE(syntax_of("", "").forced_end().empty());
  config::AnswerOptions options{.reasoning_parser = "ernie-45-vl", .thinking_end_text = "ok</think>\n"};
  const auto ids = encode_thinking_end(options, tagged());
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<TokenId>{'o', 'k'}));
  options.thinking_end_text = "</thought>";
  EXPECT_EQ(encode_thinking_end(options, tagged()).status().param, "thinking-end-text");
  options.reasoning_parser = "none";
  EXPECT_TRUE(encode_thinking_end(options, tagged()).ok()) << "it has no effect";
}

// What a process that does not encode knows of a vocabulary is enough.
TEST(AnswerSyntax, IsMadeFromTheVocabularysImageAlone) {
  const auto image = VocabularyImage::copy_of(tagged());
  config::AnswerOptions options{.reasoning_parser = "ernie-x1", .tool_call_parser = "ernie-x1"};
  options.found_thinking_end = {'\n'};
  const auto syntax = choose_syntax(options, *image, nullptr);
  ASSERT_TRUE(syntax.ok()) << syntax.status().message;
  const AnswerSyntax whole = syntax_of("ernie-x1", "ernie-x1");
  EXPECT_EQ(syntax->forced_end(), whole.forced_end());
  for (const Tag tag : {Tag::think, Tag::think_end, Tag::response, Tag::tool_call}) {
    EXPECT_EQ(syntax->token_of(tag), whole.token_of(tag));
  }
}

}  // namespace
}  // namespace troupe
