// What of JSON schema is enforced, what is refused and where, and what is said in other words.
#include "text/grammar/schema.h"

#include <gtest/gtest.h>

#include "text/grammar/formats.h"

namespace troupe::grammar {
namespace {

struct Refusal {
  const char* schema;
  const char* place;  ///< below the root
  const char* reason;
};

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesThePlace) {
  Json schema = Json::parse(GetParam().schema);
  const Status status = enforceable(schema, "s");
  EXPECT_EQ(status.code, Code::invalid_argument) << GetParam().schema;
  EXPECT_EQ(status.param, std::string("s") + GetParam().place) << status.message;
  EXPECT_EQ(status.reason, GetParam().reason) << status.message;
  EXPECT_TRUE(status.message.starts_with(status.param)) << status.message;
}

TEST(Refusals, QuoteTheReference) {
  Json schema = Json::parse(R"({"$ref":"http://example.com/s"})");
  EXPECT_EQ(enforceable(schema, "s").message,
            "s.$ref must begin with \"#/\", got \"http://example.com/s\": only definitions within the schema "
            "are read");
  schema = {{"$ref", std::string(63, 'x') + "é" + std::string(100, 'y')}};
  EXPECT_NE(enforceable(schema, "s").message.find(std::string(63, 'x') + "\uFFFD…\""), std::string::npos)
      << enforceable(schema, "s").message;
  schema = Json::parse(R"({"$ref":"#/$defs/absent"})");
  EXPECT_EQ(enforceable(schema, "s").message, "s.$ref points to nothing: \"#/$defs/absent\"");
}

constexpr const char* kUnsupported = "unsupported_schema";
constexpr const char* kInvalid = "invalid_schema";
constexpr const char* kUnsatisfiable = "unsatisfiable_schema";

INSTANTIATE_TEST_SUITE_P(
    Keywords, Refused,
    ::testing::Values(
        Refusal{R"({"properties":{"a":{"not":{}}}})", ".properties.a.not", kUnsupported},
        Refusal{R"({"else":{},"then":{}})", ".then", kUnsupported},
        Refusal{R"({"if":{}})", ".if", kUnsupported},
        Refusal{R"({"dependentRequired":{}})", ".dependentRequired", kUnsupported},
        Refusal{R"({"type":"array","uniqueItems":true})", ".uniqueItems", kUnsupported},
        Refusal{R"({"type":"array","contains":{}})", ".contains", kUnsupported},
        Refusal{R"({"type":"array","items":[{}]})", ".items", kUnsupported},
        Refusal{R"({"type":"array","items":{"type":"string","format":"uri-template"}})", ".items.format",
                kUnsupported},
        Refusal{R"({"type":"string","pattern":"a","maxLength":3})", ".pattern", kUnsupported},
        Refusal{R"({"type":"string","format":"date","pattern":"a"})", ".format", kUnsupported},
        Refusal{R"({"type":"number","multipleOf":2})", ".multipleOf", kUnsupported},
        Refusal{R"({"type":"integer","multipleOf":3,"minimum":0})", ".multipleOf", kUnsupported},
        Refusal{R"({"type":"integer","multipleOf":1025})", ".multipleOf", kUnsupported},
        Refusal{R"({"type":"number","minimum":0.0000001})", ".minimum", kUnsupported},
        Refusal{R"({"allOf":[{"type":"string"},{"minLength":1}]})", ".allOf", kUnsupported},
        Refusal{R"({"anyOf":[{"type":"string"}],"minLength":1})", ".minLength", kUnsupported},
        Refusal{R"({"enum":[1,2],"minimum":2})", ".minimum", kUnsupported},
        Refusal{R"({"const":1,"enum":[1]})", ".enum", kUnsupported},
        Refusal{R"({"oneOf":[{"type":"string"},{"enum":["a"]}]})", ".oneOf", kUnsupported},
        Refusal{R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", ".oneOf", kUnsupported},
        Refusal{R"({"properties":{"a":{}},"patternProperties":{"b":{}}})", ".patternProperties",
                kUnsupported},
        Refusal{R"({"patternProperties":{"a":{},"b":{}}})", ".patternProperties", kUnsupported},
        Refusal{R"({"propertyNames":{"pattern":"a"},"required":["a"]})", ".required", kUnsupported},
        Refusal{R"({"propertyNames":{"$ref":"#"}})", ".propertyNames.$ref", kUnsupported},
        Refusal{R"({"type":"object","minProperties":2})", ".minProperties", kUnsupported},
        Refusal{R"({"$ref":"http://example.com/s"})", ".$ref", kUnsupported},
        Refusal{R"({"$ref":"file:///etc/passwd"})", ".$ref", kUnsupported},
        Refusal{R"({"$ref":"#/$defs/a","type":"string","$defs":{"a":{}}})", ".type", kUnsupported},
        Refusal{R"({"$dynamicRef":"#x"})", ".$dynamicRef", kUnsupported}));

INSTANTIATE_TEST_SUITE_P(
    NoSchema, Refused,
    ::testing::Values(Refusal{R"([])", "", kInvalid},
                      Refusal{R"({"properties":{"foo":"bar"}})", ".properties.foo", kInvalid},
                      Refusal{R"({"properties":[]})", ".properties", kInvalid},
                      Refusal{R"({"type":"nope"})", ".type", kInvalid},
                      Refusal{R"({"type":[]})", ".type", kInvalid},
                      Refusal{R"({"enum":[]})", ".enum", kInvalid},
                      Refusal{R"({"anyOf":{}})", ".anyOf", kInvalid},
                      Refusal{R"({"required":"a"})", ".required", kInvalid},
                      Refusal{R"({"type":"string","minLength":-1})", ".minLength", kInvalid},
                      Refusal{R"({"type":"string","pattern":5})", ".pattern", kInvalid},
                      Refusal{R"({"type":"integer","exclusiveMinimum":true})", ".exclusiveMinimum", kInvalid},
                      Refusal{R"({"$ref":"#/$defs/absent"})", ".$ref", kInvalid}));

INSTANTIATE_TEST_SUITE_P(
    NoValue, Refused,
    ::testing::Values(
        Refusal{R"(false)", "", kUnsatisfiable},
        Refusal{R"({"type":"string","minLength":3,"maxLength":2})", ".minLength", kUnsatisfiable},
        Refusal{R"({"type":"integer","minimum":3,"maximum":2})", "", kUnsatisfiable},
        Refusal{R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})", "", kUnsatisfiable},
        Refusal{R"({"type":"integer","minimum":7,"maximum":8,"multipleOf":5})", ".multipleOf",
                kUnsatisfiable},
        Refusal{R"({"type":"array","minItems":2,"maxItems":1})", ".minItems", kUnsatisfiable},
        Refusal{R"({"type":"string","enum":[1,2]})", ".enum", kUnsatisfiable},
        Refusal{R"({"properties":{"a":{}},"required":["b"],"additionalProperties":false})", ".required",
                kUnsatisfiable},
        Refusal{R"({"properties":{"a":{}},"minProperties":2,"additionalProperties":false})", ".minProperties",
                kUnsatisfiable},
        Refusal{R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "", kUnsatisfiable},
        Refusal{R"({"$ref":"#"})", "", kUnsatisfiable},
        Refusal{R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "",
                kUnsatisfiable},
        Refusal{R"({"type":"array","minItems":1,"items":{"$ref":"#"}})", "", kUnsatisfiable}));

TEST(Schema, LimitsAreEnforced) {
  SchemaLimits limits;
  limits.depth = 3;
  limits.properties = 2;
  limits.enum_values = 2;
  limits.name_chars = 6;
  const auto reason = [&](const char* text) {
    Json schema = Json::parse(text);
    return enforceable(schema, "s", limits).reason;
  };
  EXPECT_EQ(reason(R"({"items":{"items":{"items":{"type":"null"}}}})"), "schema_too_large");
  EXPECT_EQ(reason(R"({"properties":{"a":{},"b":{},"c":{}}})"), "schema_too_large");
  EXPECT_EQ(reason(R"({"enum":[1,2,3]})"), "schema_too_large");
  EXPECT_EQ(reason(R"({"properties":{"abcdefg":{}}})"), "schema_too_large");
  EXPECT_EQ(reason(R"({"properties":{"ab":{"enum":["cd","e"]}}})"), "");
}

struct Rewrite {
  const char* schema;
  const char* as;
};

class Rewritten : public ::testing::TestWithParam<Rewrite> {};

TEST_P(Rewritten, InWhatIsEnforced) {
  Json schema = Json::parse(GetParam().schema);
  const Status status = enforceable(schema, "s");
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(nlohmann::json(schema), nlohmann::json::parse(GetParam().as)) << schema.dump();
}

INSTANTIATE_TEST_SUITE_P(
    All, Rewritten,
    ::testing::Values(
        Rewrite{R"(true)", R"({})"}, Rewrite{R"({"title":"x"})", R"({})"},
        Rewrite{R"({"minimum":1.5,"type":"integer"})", R"({"type":"integer","minimum":2})"},
        Rewrite{R"({"exclusiveMaximum":3,"type":"integer"})", R"({"type":"integer","maximum":2})"},
        Rewrite{R"({"maxItems":2})", R"({"type":"array","maxItems":2,"items":{}})"},
        Rewrite{R"({"type":"object"})", R"({"type":"object","additionalProperties":true})"},
        Rewrite{R"({"properties":{"a":true}})",
                R"({"type":"object","properties":{"a":{}},"additionalProperties":false})"},
        Rewrite{R"({"required":["a"]})",
                R"({"type":"object","required":["a"],"properties":{"a":{}},"additionalProperties":false})"},
        Rewrite{
            R"({"type":"object","additionalProperties":{"type":"null"},"required":["a"]})",
            R"({"type":"object","additionalProperties":{"type":"null"},"required":["a"],"properties":{"a":{"type":"null"}}})"},
        Rewrite{R"({"type":"string","enum":["a",1]})", R"({"enum":["a"]})"},
        Rewrite{R"({"const":1})", R"({"enum":[1]})"},
        Rewrite{R"({"type":"string","maxLength":5})",
                R"({"type":"string","pattern":"^[^\\x00-\\x1f]{0,5}$"})"},
        Rewrite{R"({"type":"string","minLength":2})",
                R"({"type":"string","pattern":"^[^\\x00-\\x1f]{2,}$"})"},
        Rewrite{R"({"type":"string","pattern":"^é\\é$"})",
                R"({"type":"string","pattern":"^\\u{e9}\\u{e9}$"})"},
        Rewrite{R"({"type":"string","format":"password"})", R"({"type":"string"})"},
        Rewrite{R"({"oneOf":[{"type":"string"},{"type":"null"}]})",
                R"({"anyOf":[{"type":"string"},{"type":"null"}]})"},
        Rewrite{R"({"type":"string","anyOf":[{"const":"a"},{"minLength":1}]})",
                R"({"anyOf":[{"enum":["a"]},{"type":"string","pattern":"^[^\\x00-\\x1f]{1,}$"}]})"},
        Rewrite{R"({"type":"array","uniqueItems":false,"prefixItems":[true,{"type":"null"}],"maxItems":1})",
                R"({"type":"array","prefixItems":[{}],"maxItems":1,"items":false})"}));

TEST(Schema, DiscriminatedUnionsOfDefinitionsAreDisjoint) {
  Json schema = Json::parse(
      R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"discriminator":{"propertyName":"kind"},
    "$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]},
             "dog":{"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]}}})");
  const Status status = enforceable(schema, "s");
  EXPECT_TRUE(status.ok()) << status.message;
  EXPECT_TRUE(schema.contains("anyOf"));
}

TEST(Schema, NamesCannotHideASchema) {
  // The path of the second property reads like that of a schema that was visited.
  Json schema = Json::parse(R"({"properties":{"a":{"properties":{"b":{}}},"a/properties/b":{"not":{}}}})");
  EXPECT_EQ(enforceable(schema, "s").param, "s.properties.a/properties/b.not");
  // Two names that the places of visited schemas once wrote alike: the second schema was not looked at at
  // all.
  schema = Json::parse(R"({"properties":{"a/b":{},"a\u0001b":{"$ref":5}}})");
  EXPECT_EQ(enforceable(schema, "s").param,
            "s.properties.a\x01"
            "b.$ref");
  schema = Json::parse(R"({"properties":{"a/b":{},"a\u0001b":{"type":"array","items":{},"minItems":"x"}}})");
  EXPECT_EQ(enforceable(schema, "s").param,
            "s.properties.a\x01"
            "b.minItems");
  schema = Json::parse(R"({"properties":{"a/b":{},"a~1b":{"not":{}}}})");
  EXPECT_EQ(enforceable(schema, "s").param, "s.properties.a~1b.not");
  // The schema of an empty name, and the object of all properties taken for a schema.
  schema = Json::parse(R"({"properties":{"":{},"not":{},"x":{"$ref":"#/properties"}}})");
  EXPECT_EQ(enforceable(schema, "s").param, "s.properties.not");
}

Json object_of(int properties, bool needed, const char* name = "property_") {
  Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (int i = 0; i < properties; ++i) {
    schema["properties"][name + std::to_string(i)] = {{"type", "string"}};
    if (needed) schema["required"].push_back(name + std::to_string(i));
  }
  return schema;
}

TEST(Sizes, NameThePropertyThatIsOneTooMany) {
  const auto refused_at = [](Json schema) {
    const Status status = enforceable(schema, "s");
    EXPECT_TRUE(status.ok() || status.reason == "schema_too_large") << status.message;
    return status.param;
  };
  EXPECT_EQ(refused_at(object_of(5000, true)), "");
  EXPECT_EQ(refused_at(object_of(5001, true)), "s.properties.property_5000");
  EXPECT_EQ(refused_at(object_of(2000, false)), "");
  EXPECT_EQ(refused_at(object_of(2001, false)), "s.properties.property_2000");
  Json several = object_of(0, true);
  for (const char* name : {"a", "b", "c"}) several["properties"][name] = object_of(1600, false);
  EXPECT_EQ(refused_at(several), "");

  Json open = object_of(1000, true);  // "property_", then a tree of digits
  open["additionalProperties"] = true;
  EXPECT_EQ(refused_at(open), "");
  open = object_of(1992, true);
  open["additionalProperties"] = true;
  EXPECT_EQ(refused_at(open), "s.properties.property_1991");

  Json counted = object_of(89, false);
  counted["minProperties"] = 1;
  EXPECT_EQ(refused_at(counted), "s.properties.property_88");
  counted = object_of(88, false);
  counted["minProperties"] = 1;
  EXPECT_EQ(refused_at(counted), "");
  counted = object_of(2000, false);
  counted["maxProperties"] = 2000;  // forbids nothing
  EXPECT_EQ(refused_at(counted), "");
}

TEST(Sizes, OfNamesDependOnTheVocabulary) {
  EXPECT_EQ(open_name_chars_for(258), 2000u);
  EXPECT_EQ(open_name_chars_for(103'424), 135u);
  EXPECT_EQ(open_name_chars_for(100'000'000), 100u);
}

TEST(Schema, ReferencesLeadSomewhereAfterTheRewriting) {
  // The object of all definitions, taken for a schema too: it was emptied, and the definitions with it.
  Json schema = Json::parse(
      R"({"$defs":{"n":{"type":"null"}},"properties":{"a":{"$ref":"#/$defs"},"b":{"$ref":"#/$defs/n"}}})");
  EXPECT_TRUE(enforceable(schema, "s").ok()) << enforceable(schema, "s").message;
  EXPECT_TRUE(schema["$defs"].contains("n")) << schema.dump();
  // A part of a schema that goes away with the type of another.
  schema = Json::parse(R"({"$defs":{"a":{"type":"string","properties":{"x":{"type":"null"}}}},
      "properties":{"p":{"$ref":"#/$defs/a"},"q":{"$ref":"#/$defs/a/properties/x"}}})");
  const Status status = enforceable(schema, "s");
  EXPECT_EQ(status.param, "s.properties.q.$ref") << status.message;
  EXPECT_EQ(status.reason, kInvalid);
}

TEST(Formats, PatternsInPlainWords) {
  EXPECT_EQ(plain_pattern("^(a[?]b?)??c+?(?:d)?\\?$"), "^(a[?]b{0,1}){0,1}c+(?:d){0,1}\\?$");
  EXPECT_EQ(plain_pattern("[é?]{2}?x"), "[\\u{e9}?]{2}x");
}

TEST(Formats, LengthsBeyondTheAutomatonAreCounted) {
  EXPECT_EQ(budget_of_pattern(pattern_of_length(3, 64)), std::nullopt);
  EXPECT_EQ(budget_of_pattern(pattern_of_length(3, 65)), 65);
  EXPECT_EQ(budget_of_pattern(pattern_of_length(0, 2'000'000'000)), 2'000'000'000);
  EXPECT_EQ(budget_of_pattern(pattern_of_length(3, std::nullopt)), std::nullopt);
  EXPECT_EQ(budget_of_pattern("^[^\\x1f\\x09"), std::nullopt);
}

}  // namespace
}  // namespace troupe::grammar
