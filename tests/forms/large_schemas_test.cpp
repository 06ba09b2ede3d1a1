// Schemas as large as the limits allow, through the whole way: checked, compiled by the true process with its
// limit of memory and twice its limit of processor time (machines differ in speed), carried back and
// followed.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "actors/grammar/form_service.h"
#include "grammar/support/test_vocabulary.h"
#include "text/grammar/schema.h"

namespace troupe {
namespace {

using grammar::Form;

constexpr int kVocabulary = 103'424;  // ERNIE's

class LargeTexts : public TokenTexts {
 public:
  int vocab_size() const override { return kVocabulary; }
  std::string_view token_bytes(TokenId id) const override {
    const std::string_view token = listed_.tokens[static_cast<std::size_t>(id)];
    return is_special(id) ? token.substr(1) : token;
  }
  bool is_special(TokenId id) const override {
    return listed_.tokens[static_cast<std::size_t>(id)].starts_with(grammar::kByIdOnly);
  }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return std::nullopt; }
  std::optional<TokenId> pad_id() const override { return std::nullopt; }

 private:
  const grammar::Vocabulary listed_ = testing::test_vocabulary(kVocabulary);
};

class LargeSchemas : public ::testing::Test {
 protected:
  CompileOutcome compile(Json schema) {
    if (service_ == nullptr) {
      FormServiceSetup setup;
      setup.process.vocabulary = std::make_shared<const FormVocabulary>(
          VocabularyImage::copy_of(LargeTexts()), kVocabulary, std::vector<TokenId>{kVocabulary - 1});
      setup.process.executable = TROUPE_FORM_CHILD;
      setup.process.times.time *= 2;
      setup.process.times.patience = 30;  // by the clock: the tests' machine is shared
      service_ = std::make_unique<FormService>(std::move(setup), [this](std::uint64_t ticket) {
        const std::lock_guard lock(mutex_);
        ready_ = ticket;
        changed_.notify_all();
      });
    }
    service_->submit(++ticket_, {Form::Kind::json_schema, json::to_text(schema), "guided_json"});
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ == ticket_; });
    return service_->take(ticket_);
  }

  static Json object_of(int properties, bool needed) {
    Json members = Json::object(), required = Json::array();
    for (int i = 0; i < properties; ++i) {
      const std::string name = "property_" + std::to_string(i);
      json::object(members)->Container::emplace_back(name, Json{{"type", i % 3 == 0   ? "string"
                                                                         : i % 3 == 1 ? "integer"
                                                                                      : "boolean"}});
      if (needed) required.push_back(name);
    }
    return {{"type", "object"}, {"properties", std::move(members)}, {"required", std::move(required)}};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t ready_ = 0, ticket_ = 0;
  std::unique_ptr<FormService> service_;
};

TEST_F(LargeSchemas, AsManyPropertiesAsAreAllowedCompile) {
  for (const bool needed : {true, false}) {
    const grammar::SchemaLimits limits;
    const int most = needed ? limits.properties : limits.optional_properties;
    const CompileOutcome outcome = compile(object_of(most, needed));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
    grammar::Matcher matcher(outcome.form);
    std::string text = "{\"property_0\": \"x\", \"property_1\": 1, \"property_2\": true";
    if (!needed) text += ", \"property_" + std::to_string(most - 1) + "\": ";
    for (const char c : text) ASSERT_TRUE(matcher.accept(static_cast<unsigned char>(c))) << c;
    EXPECT_FALSE(matcher.accept('}')) << "the others are required, or the last one has no value yet";
  }
}

TEST_F(LargeSchemas, OneMoreIsRefusedByItsName) {
  for (const bool needed : {true, false}) {
    const grammar::SchemaLimits limits;
    const int most = needed ? limits.properties : limits.optional_properties;
    const CompileOutcome outcome = compile(object_of(most + 1, needed));
    EXPECT_EQ(outcome.status.code, Code::invalid_argument);
    EXPECT_EQ(outcome.status.reason, "schema_too_large");
    EXPECT_EQ(outcome.status.param, "guided_json.properties.property_" + std::to_string(most));
  }
}

TEST_F(LargeSchemas, OpenAndCountedObjectsOfTheirLargestSizeCompile) {
  Json open = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", true}};
  for (std::size_t left = grammar::open_name_chars_for(kVocabulary), i = 0; left >= 12; left -= 12, ++i) {
    open["properties"][static_cast<char>('a' + i) + std::string(11, 'x')] = {{"type", "string"}};
  }
  const CompileOutcome named = compile(std::move(open));
  EXPECT_TRUE(named.status.ok()) << named.status.message;
  Json counted = object_of(88, false);
  counted["minProperties"] = 1;
  const CompileOutcome outcome = compile(std::move(counted));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
}

}  // namespace
}  // namespace troupe
