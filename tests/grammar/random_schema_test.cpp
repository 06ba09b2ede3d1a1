// Answers drawn at random from the masks of random schemas are valid under the schemas.

#include <gtest/gtest.h>

#include <algorithm>

#include <bit>
#include <random>
#include <regex>

#include "grammar/support/random_schema.h"
#include "grammar/support/test_vocabulary.h"
#include "text/grammar/constraint.h"

namespace troupe {
namespace {

using grammar::Json;
using grammar::TokenMask;

/// One of the tokens that the mask allows; the stop token in one of three cases where it is allowed.
TokenId draw(const TokenMask& mask, int vocabulary, TokenId stop, bool hurry, std::mt19937& random) {
  std::vector<TokenId> allowed;
  for (TokenId id = 0; id < vocabulary; ++id) {
    const auto word = static_cast<std::uint32_t>(id);
    const bool listed = std::binary_search(mask.words.begin(), mask.words.end(), word);
    bool in = true;
    if (mask.form == TokenMask::Form::bits) in = (mask.words[word / 32] >> (word % 32)) & 1;
    if (mask.form == TokenMask::Form::allowed) in = listed;
    if (mask.form == TokenMask::Form::denied) in = !listed;
    if (in) allowed.push_back(id);
  }
  if (allowed.empty()) return -1;
  if (allowed.back() == stop && (hurry || random() % 3 == 0)) return stop;
  if (hurry) {  // towards the end of strings, lists and objects
    for (const TokenId id : {'"', '}', ']'}) {
      if (std::binary_search(allowed.begin(), allowed.end(), id)) return id;
    }
  }
  return allowed[random() % allowed.size()];
}

/// JSON bounds no number; this parser does. Only numbers without bounds have long exponents and hundreds of
/// digits.
std::string within_doubles(const std::string& text) {
  static const std::regex kLargeExponent("([0-9][eE][-+]?[0-9]{1,2})[0-9]+");
  std::string out;
  std::size_t digits = 0;
  for (const char c : std::regex_replace(text, kLargeExponent, "$1")) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits <= 200) out += c;
  }
  return out;
}

TEST(RandomSchemas, AnswersAreValid) {
  const grammar::Vocabulary vocabulary = testing::test_vocabulary(1000);
  const grammar::TokenTable table(vocabulary);
  std::mt19937 random(11);
  constexpr int kSchemas = 400;  // 2,000 take half a minute on a busy machine
  int ended = 0, cut = 0;
  for (int i = 0; i < kSchemas; ++i) {
    const Json schema = testing::SchemaMaker(static_cast<std::uint32_t>(i)).make();
    Json rewritten = schema;
    const Status status = grammar::enforceable(rewritten, "schema");
    ASSERT_TRUE(status.ok()) << status.message << "\n" << schema.dump();
    const auto form =
        grammar::compile(table, {grammar::Source::Kind::json_schema, i % 4 != 0, rewritten.dump()}, 1);
    ASSERT_TRUE(form.ok()) << form.status().message << "\n" << schema.dump();
    auto spec = std::make_shared<grammar::ConstraintSpec>();
    spec->form = *form;
    spec->stop_ids = vocabulary.stop_ids;
    spec->vocabulary = table.size();
    for (int walk = 0; walk < 2; ++walk) {
      grammar::Constraint constraint(spec);
      TokenMask mask;
      std::string text;
      for (int n = 0; n < 600 && !constraint.ended(); ++n) {
        constraint.mask(mask);
        const TokenId token = draw(mask, table.size(), vocabulary.stop_ids.front(), n > 40, random);
        ASSERT_GE(token, 0) << schema.dump() << "\n" << text;
        constraint.accept(token);
        ASSERT_FALSE(constraint.failed()) << schema.dump() << "\n" << text;
        if (!constraint.ended()) text += vocabulary.tokens[static_cast<std::size_t>(token)];
      }
      if (!constraint.ended()) {
        ++cut;
        continue;
      }
      ++ended;
      Json value = Json::parse(utf8::to_valid(text), nullptr, false);
      if (value.is_discarded()) value = Json::parse(utf8::to_valid(within_doubles(text)), nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema.dump() << "\n" << text;
      ASSERT_TRUE(testing::SchemaValidator(schema).valid(schema, value)) << schema.dump() << "\n" << text;
    }
  }
  EXPECT_GT(ended, kSchemas);  // most walks end
  RecordProperty("ended", ended);
  RecordProperty("cut", cut);
}

}  // namespace
}  // namespace troupe
