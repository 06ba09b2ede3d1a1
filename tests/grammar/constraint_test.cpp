// Forms checked, compiled, carried to another process and followed.
#include "text/grammar/constraint.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>

#include "grammar/support/test_vocabulary.h"
#include "support/byte_tokenizer.h"
#include "support/thrown_fault.h"
#include "text/grammar/form_check.h"

namespace troupe::grammar {
namespace {

using testing::ByteTokenizer;

class ConstraintTest : public ::testing::Test {
 protected:
  ByteTokenizer tokenizer_;
  Vocabulary vocabulary_ = vocabulary_of(tokenizer_, 260, {ByteTokenizer::kEos});
  TokenTable table_{vocabulary_};

  Result<Source> prepared(Form::Kind kind, Json value) {
    return prepare(kind, std::move(value), "f", tokenizer_, true);
  }

  Result<std::shared_ptr<const CompiledForm>> compiled(Form::Kind kind, Json value) {
    const auto source = prepared(kind, std::move(value));
    if (!source.ok()) return source.status();
    return compile(table_, *source, 1);
  }

  std::shared_ptr<const ConstraintSpec> spec(std::shared_ptr<const CompiledForm> form,
                                             ThinkingRule thinking = {}) {
    return std::make_shared<ConstraintSpec>(
        ConstraintSpec{std::move(form), std::move(thinking), {ByteTokenizer::kEos}, table_.size()});
  }

  std::vector<TokenId> allowed(Constraint& constraint) {
    TokenMask mask;
    constraint.mask(mask);
    std::vector<TokenId> out;
    for (TokenId id = 0; id < table_.size(); ++id) {
      const auto word = static_cast<std::uint32_t>(id);
      const bool listed = std::find(mask.words.begin(), mask.words.end(), word) != mask.words.end();
      if (mask.form == TokenMask::Form::all || (mask.form == TokenMask::Form::allowed && listed) ||
          (mask.form == TokenMask::Form::denied && !listed) ||
          (mask.form == TokenMask::Form::bits && ((mask.words[word / 32] >> (word % 32)) & 1) != 0)) {
        out.push_back(id);
      }
    }
    return out;
  }

  /// True if every byte is allowed in its place and the answer may end after the last.
  bool accepts(Form::Kind kind, Json value, const std::string& text) {
    const auto form = compiled(kind, std::move(value));
    if (!form.ok()) {
      ADD_FAILURE() << form.status().message;
      return false;
    }
    Constraint constraint(spec(*form));
    for (const char c : text) {
      const auto ids = allowed(constraint);
      if (!std::binary_search(ids.begin(), ids.end(), static_cast<unsigned char>(c))) return false;
      constraint.accept(static_cast<unsigned char>(c));
    }
    const auto ids = allowed(constraint);
    return std::binary_search(ids.begin(), ids.end(), ByteTokenizer::kEos);
  }

  std::string reason(Form::Kind kind, Json value) {
    const auto form = compiled(kind, std::move(value));
    return form.ok() ? "" : form.status().reason;
  }
};

TEST_F(ConstraintTest, AFormThatTakesTooLongToFollowIsGivenUp) {
  const auto form = compiled(Form::Kind::regex, "((((a{1,100}){1,100}){1,100}){1,100})");
  ASSERT_TRUE(form.ok()) << form.status().message;
  Constraint constraint(spec(*form));
  TokenMask mask;
  int tokens = 0;
  for (; tokens < 400 && !constraint.too_slow(); ++tokens) {
    constraint.mask(mask);
    constraint.accept('a');
  }
  EXPECT_LT(tokens, 200) << "each letter has several times as many readings as the one before it";
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEos});
}

/// While it lives, other work takes the processor away from this process five times, for 400 ms each,
/// whenever it has computed for 5 ms.
class BusyMachine {
 public:
  BusyMachine() {
    interruptions_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (++interruptions_ <= 5) poll(nullptr, 0, 400);
    };
    sigaction(SIGVTALRM, &action, &before_);
    const itimerval often{{0, 5000}, {0, 5000}};
    setitimer(ITIMER_VIRTUAL, &often, nullptr);
  }
  ~BusyMachine() {
    const itimerval never{};
    setitimer(ITIMER_VIRTUAL, &never, nullptr);
    sigaction(SIGVTALRM, &before_, nullptr);
  }
  static int interruptions() { return interruptions_; }

 private:
  static inline std::atomic<int> interruptions_ = 0;
  struct sigaction before_ {};
};

TEST_F(ConstraintTest, LooksAheadAndStaysWhereItIs) {
  const auto form = compiled(Form::Kind::regex, "ab[cd]e");
  ASSERT_TRUE(form.ok());
  const ThinkingRule thinking{'.', true, -1, {}};
  const auto look = [](Constraint& constraint, const std::string& text) {
    TokenMask now;
    constraint.mask(now);
    Ahead ahead;
    const std::vector<TokenId> drafts(text.begin(), text.end());
    constraint.look_ahead(drafts, 0, now, INT64_MAX, ahead);
    return ahead.masks;
  };
  const auto only = [](const TokenMask& mask) {
    return mask.form == TokenMask::Form::allowed ? std::string(mask.words.begin(), mask.words.end()) : "?";
  };
  Constraint constraint(spec(*form, thinking));
  std::vector<TokenMask> ahead = look(constraint, "x.abdz");
  ASSERT_EQ(ahead.size(), 5u) << "the form begins in the middle, and does not allow the last";
  EXPECT_EQ(ahead[0].form, TokenMask::Form::all);
  EXPECT_EQ(only(ahead[1]), "a");
  EXPECT_EQ(only(ahead[2]), "b");
  EXPECT_EQ(only(ahead[3]), "cd");
  EXPECT_EQ(only(ahead[4]), "e");
  for (const char c : std::string("x.ab")) constraint.accept(c);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(allowed(constraint), (std::vector<TokenId>{'c', 'd'})) << "nothing was accepted but what came";
    ahead = look(constraint, "ce");
    ASSERT_EQ(ahead.size(), 2u);
    EXPECT_EQ(allowed(constraint), (std::vector<TokenId>{'c', 'd'}));
    EXPECT_TRUE(look(constraint, "e").empty());
  }
  constraint.accept('c');
  constraint.accept('e');
  TokenMask now;
  constraint.mask(now);
  const std::vector<TokenId> end{ByteTokenizer::kEos, ByteTokenizer::kEos};
  Ahead none;
  constraint.look_ahead(end, 4, now, INT64_MAX, none);
  EXPECT_TRUE(none.masks.empty()) << "behind the end nothing is made";
  EXPECT_TRUE(none.forced.empty());
  EXPECT_FALSE(constraint.ended());
  EXPECT_FALSE(constraint.failed());
}

/// What is forced after some text if the answer goes on with the drafts.
class ForcedTokens : public ConstraintTest {
 protected:
  std::string forced(Constraint constraint, const std::string& text, const std::string& drafts,
                     std::size_t most) const {
    for (const char c : text) constraint.accept(c);
    TokenMask now;
    constraint.mask(now);
    Ahead ahead;
    constraint.look_ahead(std::vector<TokenId>(drafts.begin(), drafts.end()), most, now, INT64_MAX, ahead);
    TokenMask still;
    constraint.mask(still);
    EXPECT_EQ(still.words, now.words) << "the answer stays where it is";
    std::string out;
    for (const TokenId id : ahead.forced) out += vocabulary_.tokens[static_cast<std::size_t>(id)] + "|";
    return out;
  }
};

TEST_F(ForcedTokens, AreThoseThatTheFormAloneDecides) {
  const auto form = compiled(Form::Kind::regex, "a[xy]bcd(e|fgh)");
  ASSERT_TRUE(form.ok());
  const auto of = [&](const std::string& text, const std::string& drafts, std::size_t most) {
    return forced(Constraint(spec(*form)), text, drafts, most);
  };
  EXPECT_EQ(of("", "", 9), "") << "one alone saves nothing";
  EXPECT_EQ(of("ax", "", 9), "b|c|d|");
  EXPECT_EQ(of("ax", "", 2), "b|c|");
  EXPECT_EQ(of("ax", "", 0), "");
  EXPECT_EQ(of("", "ay", 9), "b|c|d|") << "behind the draft tokens";
  EXPECT_EQ(of("", "ayQ", 9), "b|c|d|") << "that the form allows";
  EXPECT_EQ(of("axbcd", "f", 9), "g|h|") << "and not the end";
}

TEST_F(ForcedTokens, BehindABudgetOfThoughts) {
  const auto form = compiled(Form::Kind::regex, "bcd");
  ASSERT_TRUE(form.ok());
  const ThinkingRule rule{'.', true, 2, {'s', 'o', '.'}, {}};
  EXPECT_EQ(forced(Constraint(spec(*form, rule)), "xy", "", 9), "s|o|.|b|c|d|");
  EXPECT_EQ(forced(Constraint(spec(nullptr, rule)), "x", "y", 9), "s|o|.|") << "free behind them";
}

TEST_F(ForcedTokens, ATextIsCutIntoTheLongestTokens) {
  vocabulary_ = testing::test_vocabulary(1000);
  table_ = TokenTable(vocabulary_);
  const auto form = compiled(Form::Kind::regex, "x(true|false)nullvalue[0-9]");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(forced(Constraint(spec(*form)), "xtrue", "", 9), "null|value|");
  EXPECT_EQ(forced(Constraint(spec(*form)), "xt", "", 9), "r|u|e|null|value|");
}

TEST_F(ConstraintTest, ABusyMachineMakesNoFormTooComplex) {
  const TokenTable table(testing::test_vocabulary(1000));
  const auto source = prepare(Form::Kind::regex, "([a-z]{1,10}){1,10}", "f", tokenizer_, true);
  ASSERT_TRUE(source.ok());
  const BusyMachine busy;
  for (int tries = 0; busy.interruptions() < 2; ++tries) {  // a fast machine compiles it between two of them
    ASSERT_LT(tries, 1000);
    const auto form = compile(table, *source, 1);
    ASSERT_TRUE(form.ok()) << form.status().message;
  }
}

TEST_F(ConstraintTest, EveryKindOfForm) {
  using Kind = Form::Kind;
  EXPECT_TRUE(accepts(Kind::json_object, {}, R"({"a": [1, {"b": null}], "c": "d\n"})"));
  EXPECT_FALSE(accepts(Kind::json_object, {}, "[1]"));
  EXPECT_TRUE(accepts(Kind::json_schema,
                      Json::parse(R"({"properties":{"a":{"type":"integer"}},"required":["a"]})"),
                      "{\"a\":12}"));
  EXPECT_FALSE(accepts(Kind::json_schema,
                       Json::parse(R"({"properties":{"a":{"type":"integer"}},"required":["a"]})"), "{}"));
  EXPECT_TRUE(accepts(Kind::regex, "[a-z]+\\.com", "example.com"));
  EXPECT_FALSE(accepts(Kind::regex, "a.c", "a\nc"));
  EXPECT_TRUE(accepts(Kind::choice, {"yes", "no", "q\"\\\n"}, "q\"\\\n"));
  EXPECT_FALSE(accepts(Kind::choice, {"yes", "no"}, "maybe"));
  EXPECT_TRUE(accepts(Kind::grammar, "root ::= n (\"+\" n)*\nn ::= [0-9]+", "1+23"));
  EXPECT_TRUE(accepts(
      Kind::structural_tag,
      Json::parse(
          R"({"structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f"]})"),
      "free text <f>5</f> more"));
  EXPECT_TRUE(accepts(Kind::structural_tag,
                      Json::parse(R"({"format":{"type":"const_string","value":"abc"}})"), "abc"));
}

TEST_F(ConstraintTest, ExpressionsThatAreHardForOthers) {
  using Kind = Form::Kind;
  const std::string letters(100, 'a');
  EXPECT_TRUE(accepts(Kind::regex, "(a+)+b", letters + "b"));
  EXPECT_TRUE(accepts(Kind::regex, "(a*)*b", letters + "b"));
  EXPECT_TRUE(accepts(Kind::regex, "(a{1,1000}){1,1000}", "aaaaaaaa"));
  EXPECT_TRUE(accepts(Kind::grammar, "root ::= root \"a\" | \"a\"", letters));
  EXPECT_TRUE(accepts(Kind::grammar, "root ::= x \"a\"\nx ::= root | \"b\"", "b" + letters));
  EXPECT_TRUE(accepts(Kind::grammar, "root ::= (\"a\"*)*", letters));
  EXPECT_EQ(reason(Kind::grammar, "root ::= root"), "unsatisfiable_schema");
  EXPECT_EQ(reason(Kind::grammar, "root ::= x\nx ::= root \"a\""), "unsatisfiable_schema");
}

TEST_F(ConstraintTest, StringsOfABoundedLength) {
  const Json short_one = {{"type", "string"}, {"minLength", 2}, {"maxLength", 4}},
             long_one = {{"type", "string"}, {"maxLength", 100}};
  EXPECT_TRUE(accepts(Form::Kind::json_schema, short_one, "\"aé\""));
  EXPECT_FALSE(accepts(Form::Kind::json_schema, short_one, "\"a\""));
  EXPECT_FALSE(accepts(Form::Kind::json_schema, short_one, "\"abcde\""));
  EXPECT_FALSE(accepts(Form::Kind::json_schema, short_one, "\"a\tb\""));
  EXPECT_TRUE(accepts(Form::Kind::json_schema, long_one, "\"" + std::string(100, 'x') + "\""));
  EXPECT_FALSE(accepts(Form::Kind::json_schema, long_one, "\"" + std::string(101, 'x') + "\""));
  EXPECT_FALSE(accepts(Form::Kind::json_schema, long_one, "\"a\tb\""));
}

TEST_F(ConstraintTest, WhatCannotBeCompiledIsRefused) {
  using Kind = Form::Kind;
  for (const char* regex : {"foo**", "^+[a-z]$", "^{2}x", "(?<=x)*", "(a", "(?=a)b", "a$b"}) {
    EXPECT_EQ(reason(Kind::regex, regex), "invalid_regex") << regex;
  }
  EXPECT_EQ(reason(Kind::regex, std::string(70'000, 'a')), "grammar_too_large");
  EXPECT_EQ(reason(Kind::regex, std::string(501, '(') + std::string(501, ')')), "grammar_too_deep");
  EXPECT_EQ(reason(Kind::regex, ""), "invalid_value");
  EXPECT_EQ(reason(Kind::grammar, "rood ::= \"a\""), "invalid_grammar");
  EXPECT_EQ(reason(Kind::grammar, "root ::= absent"), "invalid_grammar");
  EXPECT_EQ(reason(Kind::grammar, "root ::= " + std::string(501, '(')), "grammar_too_deep");
  for (const char* lark :
       {"start: \"a\"", "start : \"a\" | b\n?b.2: \"::=\"\n", "%import common.INT\nstart: INT",
        "// sums\n\n!start: n (\"+\" n)*\nn: /[0-9]+/\n%ignore \" \""}) {
    const Status status = compiled(Kind::grammar, lark).status();
    EXPECT_EQ(status.reason, "invalid_grammar") << lark;
    EXPECT_NE(status.message.find("Lark's dialect"), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("name ::= body"), std::string::npos) << status.message;
  }
  // A colon elsewhere does not make a grammar one of Lark's.
  EXPECT_EQ(reason(Kind::grammar, "# note: sums\nroot ::= \"a:\" |\n  \"b: c\""), "");
  EXPECT_EQ(reason(Kind::grammar, "root = \"a\""), "invalid_grammar");
  EXPECT_EQ(reason(Kind::choice, Json::array()), "invalid_value");
  EXPECT_EQ(reason(Kind::choice, {"a", ""}), "invalid_value");
  EXPECT_EQ(reason(Kind::structural_tag, Json::parse(R"({"format":{"type":"nope"}})")),
            "invalid_structural_tag");
  EXPECT_EQ(reason(Kind::structural_tag, Json::parse(R"({"format":{"type":"token","token":"absent"}})")),
            "invalid_value");
  const auto tag = compiled(
      Kind::structural_tag,
      Json::parse(R"({"format":{"type":"json_schema","json_schema":{"properties":{"a":{"not":{}}}}}})"));
  EXPECT_EQ(tag.status().param, "f.format.json_schema.properties.a.not");
}

TEST_F(ConstraintTest, PatternsThatWouldLetQuotesOutAreRefused) {
  for (const char* pattern : {"^\"x\"$", "\\bword\\b", "(?=a)b", "^\\p{L}+$", "a^b"}) {
    const auto form =
        compiled(Form::Kind::json_schema,
                 {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"pattern", pattern}}}}}});
    EXPECT_FALSE(form.ok()) << pattern;
    if (!form.ok() && form.status().reason == "invalid_regex") {
      EXPECT_EQ(form.status().param, ".properties.a.pattern");
    }
  }
  EXPECT_FALSE(accepts(Form::Kind::json_schema, {{"type", "string"}, {"pattern", "^\\S+$"}}, "\"a\"b\""));
}

TEST_F(ConstraintTest, WhatAPatternLeavesOptionalHasItsBegin) {
  for (const char* pattern :
       {"^a(x[0-9]+)?b$", "^a(x[0-9]+){0,1}b$", "^a((x[0-9]+)?)*b$", "^a(x|y[0-9]*)??b$"}) {
    const Json schema = {{"type", "string"}, {"pattern", pattern}};
    EXPECT_FALSE(accepts(Form::Kind::json_schema, schema, "\"a7b\"")) << pattern;
    EXPECT_TRUE(accepts(Form::Kind::json_schema, schema, "\"ab\"")) << pattern;
  }
}

TEST_F(ConstraintTest, ACompiledFormTravelsAsBytes) {
  const auto form = compiled(Form::Kind::json_schema,
                             Json::parse(R"({"properties":{"a":{"type":"string"},"b":{"type":"number"}}})"));
  ASSERT_TRUE(form.ok()) << form.status().message;
  const std::string bytes = (*form)->to_bytes();
  const auto copy = CompiledForm::from_bytes(table_, bytes);
  ASSERT_TRUE(copy.ok()) << copy.status().message;
  Constraint original(spec(*form)), travelled(spec(*copy));
  for (const char c : std::string(R"({"a":"x","b":1.5})")) {
    EXPECT_EQ(allowed(original), allowed(travelled));
    original.accept(static_cast<unsigned char>(c));
    travelled.accept(static_cast<unsigned char>(c));
  }
  EXPECT_FALSE(travelled.failed());
  for (std::size_t cut = 0; cut < bytes.size(); cut += 1 + bytes.size() / 97) {
    EXPECT_FALSE(CompiledForm::from_bytes(table_, std::string_view(bytes).substr(0, cut)).ok()) << cut;
  }
  const TokenTable other(testing::test_vocabulary(1000));
  EXPECT_FALSE(CompiledForm::from_bytes(TokenTable(Vocabulary{{"a", "b"}, {1}}), bytes).ok());
}

TEST_F(ConstraintTest, AVocabularyTravelsAsBytes) {
  const std::string bytes = to_bytes(vocabulary_);
  const auto copy = vocabulary_from_bytes(bytes);
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->tokens, vocabulary_.tokens);
  EXPECT_EQ(copy->stop_ids, vocabulary_.stop_ids);
  for (std::size_t cut = 0; cut < bytes.size(); cut += 7) {
    EXPECT_FALSE(vocabulary_from_bytes(std::string_view(bytes).substr(0, cut)).ok());
  }
  EXPECT_EQ(vocabulary_.tokens[ByteTokenizer::kEnd][0], kByIdOnly);
  EXPECT_TRUE(vocabulary_.tokens[0xC0].empty());
  EXPECT_TRUE(vocabulary_.tokens[259].empty());
}

TEST_F(ConstraintTest, SpecialTokensCountByTheirIdAlone) {
  const auto form =
      compiled(Form::Kind::structural_tag,
               Json::parse(R"({"format":{"type":"sequence","elements":[{"type":"token","token":"<|end|>"},
                               {"type":"const_string","value":"a"}]}})"));
  ASSERT_TRUE(form.ok()) << form.status().message;
  Constraint constraint(spec(*form));
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEnd});
  constraint.accept(ByteTokenizer::kEnd);
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{'a'});
  EXPECT_FALSE(accepts(Form::Kind::regex, ".*", "\xFF"));
}

TEST_F(ConstraintTest, OnlyStopTokensFollowTheEnd) {
  const auto form = compiled(Form::Kind::choice, {"ab"});
  ASSERT_TRUE(form.ok());
  Constraint constraint(spec(*form));
  constraint.accept('a');
  constraint.accept('b');
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEos});
  EXPECT_FALSE(constraint.ended());
  constraint.accept(ByteTokenizer::kEos);
  EXPECT_TRUE(constraint.ended());
  constraint.accept(ByteTokenizer::kEos);
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEos});
  EXPECT_EQ(constraint.tokens(), 4);
}

TEST_F(ConstraintTest, AfterATokenThatWasNotAllowedTheAnswerEnds) {
  const auto form = compiled(Form::Kind::choice, {"ab"});
  Constraint constraint(spec(*form));
  constraint.accept('x');
  EXPECT_TRUE(constraint.failed());
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEos});
}

TEST_F(ConstraintTest, ThoughtsAreFreeButCannotEndTheAnswer) {
  const auto form = compiled(Form::Kind::choice, {"ab"});
  Constraint constraint(spec(*form, {ByteTokenizer::kEnd, true, -1, {}, {'!', ByteTokenizer::kEos}}));
  const auto all_but_denied = [&] {
    const auto ids = allowed(constraint);
    return ids.size() == 258 && !std::binary_search(ids.begin(), ids.end(), ByteTokenizer::kEos) &&
           !std::binary_search(ids.begin(), ids.end(), '!');
  };
  EXPECT_TRUE(all_but_denied());
  for (const char c : std::string("hm, ab")) constraint.accept(static_cast<unsigned char>(c));
  EXPECT_TRUE(all_but_denied());
  constraint.accept(ByteTokenizer::kEnd);
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{'a'});
  constraint.accept('a');
  constraint.accept('b');
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEos});
}

TEST_F(ConstraintTest, WhatThoughtsMayNotSayDoesNotKeepThemOpen) {
  const auto form = compiled(Form::Kind::choice, {"ab"});
  Constraint constraint(
      spec(*form, {ByteTokenizer::kEnd, true, 1, {ByteTokenizer::kEnd}, {ByteTokenizer::kEos}}));
  EXPECT_EQ(allowed(constraint).size(), 259u);
  constraint.accept('h');
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEnd});
}

TEST_F(ConstraintTest, ThoughtsEndAtTheirBudget) {
  const auto form = compiled(Form::Kind::choice, {"ab"});
  Constraint constraint(spec(*form, {ByteTokenizer::kEnd, true, 2, {'.', ByteTokenizer::kEnd}}));
  constraint.accept('h');
  EXPECT_EQ(allowed(constraint).size(), 260u);
  constraint.accept('m');
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{'.'});
  constraint.accept('.');
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEnd});
  constraint.accept(ByteTokenizer::kEnd);
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{'a'});
}

TEST_F(ConstraintTest, ABudgetWithoutAForm) {
  Constraint constraint(spec(nullptr, {ByteTokenizer::kEnd, true, 0, {ByteTokenizer::kEnd}}));
  EXPECT_EQ(allowed(constraint), std::vector<TokenId>{ByteTokenizer::kEnd});
  constraint.accept(ByteTokenizer::kEnd);
  EXPECT_EQ(allowed(constraint).size(), 260u);
  Constraint closed(spec(nullptr, {ByteTokenizer::kEnd, false, 0, {ByteTokenizer::kEnd}}));
  EXPECT_EQ(allowed(closed).size(), 260u);
}

TEST_F(ConstraintTest, AMaskTakesTheFewestWords) {
  const TokenTable table(testing::test_vocabulary(3000));
  const auto words = [&](const char* regex) {
    const auto source = prepare(Form::Kind::regex, regex, "f", tokenizer_, true);
    Constraint constraint(
        std::make_shared<ConstraintSpec>(ConstraintSpec{*compile(table, *source, 1), {}, {2999}, 3000}));
    TokenMask mask;
    constraint.mask(mask);
    return mask;
  };
  EXPECT_EQ(words("[ab]").form, TokenMask::Form::allowed);
  EXPECT_EQ(words("[ab]").words, (std::vector<std::uint32_t>{'a', 'b'}));
  EXPECT_EQ(words("[a-z]+").form, TokenMask::Form::bits);
  EXPECT_EQ(words("[a-z]+").words.size(), 94u);
  EXPECT_EQ(words("[\\s\\S]*").form, TokenMask::Form::denied);
}

TEST_F(ConstraintTest, AFaultFreesTheRowAndIsTold) {
  for (const char* place : {"mask", "following a form"}) {
    const auto form = compiled(Form::Kind::regex, "[a-z]{3}");
    ASSERT_TRUE(form.ok()) << form.status().message;
    Constraint constraint(spec(*form)), other(spec(*form));
    const testing::ThrownFault fault(place);
    constraint.accept('a');
    EXPECT_EQ(allowed(constraint).size(), static_cast<std::size_t>(table_.size()));
    EXPECT_EQ(constraint.fault().code, Code::internal) << place;
    constraint.accept('1');
    EXPECT_EQ(constraint.tokens(), 2);
    other.accept('a');
    EXPECT_EQ(allowed(other).size(), 26u) << "the others are held to the form";
    EXPECT_TRUE(other.fault().ok());
  }
}

}  // namespace
}  // namespace troupe::grammar
