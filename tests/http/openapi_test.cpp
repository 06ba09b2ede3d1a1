// The list of fields against the readers, and the document that is made from it.
#include "http/api/openapi.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "http/api/messages_request.h"
#include "http/api/request_fields.h"
#include "http/api/responses_request.h"
#include "http/server/routes.h"

namespace troupe::http {
namespace {

using nlohmann::json;

/// Limits of -1 allow all that the document does.
const config::LimitOptions kDocumentLimits{.max_logprobs = -1, .max_completion_logprobs = -1};
const ModelFacts kDocumentModel{.names = {"demo"}, .vocab_size = 1000};
const RequestRules kDocumentRules{kDocumentLimits, kDocumentModel};

/// The outcome of a body that is good but for `value` in the field `name`.
Status parsed_with(ApiSet api, const std::string& name, const json& value) {
  const json turns = {{{"role", "user"}, {"content", "hi"}}};
  json body = json::object();
  if (api == kChatApi || api == kMessagesApi) body["messages"] = turns;
  if (api == kMessagesApi) body["max_tokens"] = 10;
  if (api == kCompletionsApi) body["prompt"] = "hi";
  if (api == kResponsesApi) body["input"] = "hi";
  if (name == "top_logprobs" && api == kChatApi) body["logprobs"] = true;
  body[name] = value;
  const std::string text = body.dump();
  switch (api) {
    case kChatApi: return parse_chat(text, kDocumentRules).status();
    case kCompletionsApi: return parse_completion(text, kDocumentRules).status();
    case kResponsesApi: return parse_responses(text, kDocumentRules).status();
    default: return parse_messages(text, kDocumentRules).status();
  }
}

constexpr std::uint16_t kAnswering[] = {kChatApi, kCompletionsApi, kResponsesApi, kMessagesApi};

TEST(RequestFields, ReadersHaveTheBoundsOfTheList) {
  int checked = 0;
  for (const RequestField& field : request_fields()) {
    const std::string name(field.name);
    for (const ApiSet api : kAnswering) {
      if ((field.apis & api) == 0) continue;
      for (const auto& [border, beyond] :
           {std::pair(field.bounds.low, -1.0), std::pair(field.bounds.high, 1.0)}) {
        if (!std::isfinite(border)) continue;
        const bool integer = field.type == FieldType::integer;
        const json inside = integer ? json(static_cast<std::int64_t>(border)) : json(border);
        const json outside =
            integer ? json(static_cast<std::int64_t>(border + beyond)) : json(border + beyond);
        EXPECT_NE(parsed_with(api, name, inside).reason, "out_of_range")
            << name << " " << inside << " api " << api;
        const Status refused = parsed_with(api, name, outside);
        EXPECT_EQ(refused.param, name) << outside << " api " << api;
        EXPECT_EQ(refused.reason, "out_of_range") << name << " " << outside << " api " << api;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 60);
}

TEST(RequestFields, ReadersHaveTheTypesOfTheList) {
  for (const RequestField& field : request_fields()) {
    if (field.about.empty() || field.about.find("not offered") != field.about.npos ||
        field.type == FieldType::any)
      continue;
    const std::string name(field.name);
    for (const ApiSet api : kAnswering) {
      if ((field.apis & api) == 0 || name == "add_special_tokens" || name == "prompt_token_ids") continue;
      const json wrong = field.type == FieldType::string ? json(5) : json("wrong");
      const Status refused = parsed_with(api, name, wrong);
      EXPECT_FALSE(refused.ok()) << name << " api " << api;
      EXPECT_TRUE(refused.param.starts_with(name)) << name << ": " << refused.message << " api " << api;
    }
  }
}

TEST(OpenApi, EveryRouteIsThereAndEveryReferenceLeadsSomewhere) {
  const json blind = json::parse(openapi_document(kDocumentLimits));
  EXPECT_EQ(blind["components"]["schemas"].dump().find("image_url"), std::string::npos);
  for (const bool sees : {false, true}) {
    const std::string text = openapi_document(kDocumentLimits, sees);
    const json of_model = json::parse(text);
    for (std::size_t at = 0; (at = text.find("\"#/", at)) != text.npos; ++at) {
      const std::string pointer = text.substr(at + 2, text.find('"', at + 1) - at - 2);
      EXPECT_TRUE(of_model.contains(json::json_pointer(pointer))) << pointer;
    }
  }
  const json document = json::parse(openapi_document(kDocumentLimits, true));
  EXPECT_EQ(document["openapi"], "3.1.0");
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, about] : methods.items()) {
      const std::string upper = method == "get" ? "GET" : method == "delete" ? "DELETE" : "POST";
      const RouteMatch match = match_route(upper, path, Pages::both);
      ASSERT_TRUE(match.allowed) << path;
      EXPECT_EQ(about.contains("requestBody"), match.serves(Handler::json)) << path;
      EXPECT_EQ(about.contains("security"), match.access() != Access::client) << path;
      EXPECT_EQ(about.contains("security") && about["security"].size() > 1, match.access() == Access::admin)
          << path;
    }
  }
}

TEST(OpenApi, FieldsHaveTypesAndBounds) {
  const json document = json::parse(openapi_document(kDocumentLimits));
  const auto fields = [&](const char* path) {
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
  };
  const json chat = fields("/v1/chat/completions")["properties"];
  EXPECT_EQ(chat["temperature"]["type"], json({"number", "null"}));
  EXPECT_EQ(chat["temperature"]["maximum"], 2);
  EXPECT_EQ(chat["n"]["maximum"], kDocumentLimits.max_n);
  EXPECT_FALSE(chat.contains("input"));
  EXPECT_EQ(fields("/v1/responses")["properties"]["n"]["maximum"], 1);
  EXPECT_EQ(fields("/v1/messages")["required"], json({"messages", "max_tokens"}));
  EXPECT_EQ(fields("/v1/messages")["properties"]["max_tokens"]["type"], "integer");
  EXPECT_FALSE(fields("/v1/messages/count_tokens")["properties"].contains("max_tokens"));
}

}  // namespace
}  // namespace troupe::http
