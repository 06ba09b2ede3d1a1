// Checking a form takes time in proportion to its bytes, whatever it holds.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/byte_tokenizer.h"
#include "text/grammar/form_check.h"
#include "text/grammar/pattern_check.h"
#include "text/grammar/schema.h"

namespace troupe::grammar {
namespace {

// Of the processor, for at most 8 MB. What is not linear takes minutes or hours; a sanitizer a few times as
// long.
constexpr std::int64_t kMostNs = 8'000'000'000;

/// Runs the check and expects that it takes little time. The refusal's reason, or nothing.
template <class Check>
std::string in_time(Check check) {
  const std::int64_t begin = thread_cpu_ns();
  const Status status = check();
  EXPECT_LT(thread_cpu_ns() - begin, kMostNs);
  EXPECT_LT(status.message.size(), 4096u);
  EXPECT_LT(status.param.size(), 4096u);
  return status.reason;
}

std::string of_schema(Json schema) {
  return in_time([&] { return enforceable(schema, "s"); });
}

/// An object with `count` members "prefix0", "prefix1" … with a value each.
template <class Value>
Json members(const char* prefix, int count, Value value) {
  Json out = Json::object();
  for (int i = 0; i < count; ++i)
    out.get_ref<Json::object_t&>().emplace_back(prefix + std::to_string(i), value(i));
  return out;
}

Json names(const char* prefix, int count) {
  Json out = Json::array();
  for (int i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

TEST(LinearSchema, ManyRequiredNames) {
  EXPECT_EQ(of_schema({{"type", "object"}, {"required", names("n", 300'000)}}), "schema_too_large");
  EXPECT_EQ(of_schema({{"required", Json(300'000, "same")}}), "");
  EXPECT_EQ(of_schema({{"properties", members("n", 5000, [](int) { return Json::object(); })},
                       {"required", names("n", 5000)}}),
            "");
}

TEST(LinearSchema, ManyRequiredNamesThatAreNotDeclared) {
  EXPECT_EQ(of_schema({{"type", "object"}, {"required", names("n", 5000)}}), "");
  const Json large = {{"type", "object"},
                      {"properties", members("p", 4000, [](int) { return Json::object(); })}};
  EXPECT_EQ(of_schema({{"required", names("n", 4000)}, {"additionalProperties", large}}), "schema_too_large");
}

TEST(LinearSchema, ALongChainOfRequiredProperties) {
  // Each definition needs the one after it: found finite from the last to the first.
  constexpr int kLength = 4000;
  Json root = {{"properties", members("p", kLength,
                                      [](int i) {
                                        return Json{{"$ref", "#/$defs/d" + std::to_string(i)}};
                                      })},
               {"required", names("p", kLength)}};
  root["$defs"] = members("d", kLength, [](int i) {
    if (i + 1 == kLength) return Json{{"type", "null"}};
    return Json{{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
  });
  EXPECT_EQ(of_schema(root), "");
  root["$defs"]["d" + std::to_string(kLength - 1)] = {{"$ref", "#/$defs/d0"}};
  EXPECT_EQ(of_schema(root), "unsatisfiable_schema");
}

TEST(LinearSchema, ManyReferencesIntoManyDefinitions) {
  Json root = {{"anyOf", Json::array()}};
  for (int i = 0; i < 9000; ++i)
    root["anyOf"].push_back({{"$ref", "#/$defs/d" + std::to_string(90'000 + i)}});
  root["$defs"] = members("d", 100'000, [](int) { return Json{{"type", "null"}}; });
  EXPECT_EQ(of_schema(root), "");
}

TEST(LinearSchema, ManySchemasBelowALongName) {
  Json below = {{"anyOf", Json::array()}};
  for (int i = 0; i < 19'000; ++i) below["anyOf"].push_back({{"type", "null"}});
  EXPECT_EQ(of_schema({{"properties", {{std::string(119'000, 'n'), below}}}}), "");
  below["anyOf"].back() = {{"not", Json::object()}};
  EXPECT_EQ(of_schema({{"properties", {{std::string(119'000, 'n'), below}}}}), "unsupported_schema");
}

TEST(LinearSchema, LongListsInAOneOf) {
  const Json many = {{"oneOf", {{{"enum", names("a", 150'000)}}, {{"enum", names("b", 150'000)}}}}};
  EXPECT_EQ(of_schema(many), "schema_too_large");
  Json options = Json::array();  // each pair differs only in its last property
  for (int i = 0; i < 250; ++i) {
    Json properties = members("p", 15, [](int) { return Json{{"type", "null"}}; });
    properties["tag"] = {{"const", i}};
    options.push_back({{"type", "object"}, {"properties", properties}, {"required", names("p", 15)}});
    options.back()["required"].push_back("tag");
  }
  EXPECT_EQ(of_schema({{"oneOf", options}}), "");
  const Json types(100'000, "string"), others(100'000, "null");
  EXPECT_EQ(of_schema({{"oneOf", {{{"type", types}}, {{"type", others}}}}}), "");
}

TEST(LinearSchema, ALongListOfTypes) {
  EXPECT_EQ(of_schema({{"type", Json(200'000, "string")}, {"enum", names("a", 1000)}}), "");
  Json options(20'000, Json::object());
  EXPECT_EQ(of_schema({{"type", Json(200'000, "string")}, {"anyOf", options}}), "schema_too_large");
}

TEST(LinearForm, ALongNameInAStructuralTag) {
  const testing::ByteTokenizer tokenizer;
  Json format = {{"type", "any_text"}};
  format[std::string(1 << 20, 'k')] = Json(200'000, Json::object());
  EXPECT_EQ(in_time([&] {
              return prepare(Form::Kind::structural_tag, {{"format", format}}, "structural_tag", tokenizer,
                             true)
                  .status();
            }),
            "");
}

TEST(LinearForm, ManyChoices) {
  const testing::ByteTokenizer tokenizer;
  EXPECT_EQ(
      in_time([&] {
        return prepare(Form::Kind::choice, names("c", 300'000), "guided_choice", tokenizer, true).status();
      }),
      "invalid_value");
  EXPECT_EQ(in_time([&] {
              return prepare(Form::Kind::regex, std::string(60'000, '{') + "1", "guided_regex", tokenizer,
                             true)
                  .status();
            }),
            "");
}

// By the compiler, before anything is compiled.
TEST(LinearForm, PatternsBesideManyMembers) {
  Json schema = {{"type", "null"}, {"examples", members("e", 300'000, [](int) { return Json(0); })}};
  schema[std::string(1 << 20, 'k')] = Json(200'000, Json::object());
  const Source source{Source::Kind::json_schema, true, schema.dump()};
  EXPECT_EQ(in_time([&] { return check_patterns(source); }), "");
}

}  // namespace
}  // namespace troupe::grammar
