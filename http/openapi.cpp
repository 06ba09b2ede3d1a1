#include "http/openapi.h"

#include <cmath>
#include <initializer_list>

#include "http/json_body.h"
#include "http/request_fields.h"

namespace troupe::http {
namespace {

/// A route with a body.
struct BodyRoute {
  std::string_view path;
  std::uint16_t api;
  std::string_view about;
  std::initializer_list<const char*> required;  ///< members of the body
  bool streams;
  bool anthropic_errors;
  std::initializer_list<const char*> answer;  ///< members that every answer has
};

const BodyRoute kBodyRoutes[] = {
    {"/v1/chat/completions",
     kChatApi,
     "OpenAI's chat completions",
     {},
     true,
     false,
     {"id", "object", "created", "model", "choices", "usage"}},
    {"/v1/completions",
     kCompletionsApi,
     "OpenAI's completions",
     {},
     true,
     false,
     {"id", "object", "created", "model", "choices", "usage"}},
    {"/v1/responses",
     kResponsesApi,
     "OpenAI's responses, without storage",
     {"input"},
     true,
     false,
     {"id", "object", "created_at", "model", "status", "output", "usage", "tools", "tool_choice", "store"}},
    {"/v1/messages",
     kMessagesApi,
     "Anthropic's messages",
     {"messages", "max_tokens"},
     true,
     true,
     {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}},
    {"/v1/messages/count_tokens",
     kCountTokensApi,
     "The tokens of a message's prompt",
     {"messages"},
     false,
     true,
     {"input_tokens"}},
    {"/tokenize",
     kTokenizeApi,
     "A prompt or messages to token ids",
     {},
     false,
     false,
     {"count", "max_model_len", "tokens"}},
    {"/detokenize", kDetokenizeApi, "Token ids to text", {"tokens"}, false, false, {"prompt"}},
};

struct PageRoute {
  std::string_view path;
  std::string_view method;
  std::string_view about;
  bool open;  ///< without a key
};

constexpr PageRoute kPageRoutes[] = {
    {"/v1/models", "get", "The served model", false},
    {"/openapi.json", "get", "This document", false},
    {"/v1/troupe/events", "get", "The live state of the engine, as server-sent events", false},
    {"/", "get", "The chat page", true},
    {"/topology", "get", "The page that shows the live state", true},
    {"/docs", "get", "The page that shows this document", true},
    {"/health", "get", "200 when requests are served, else 503", true},
    {"/health/ready", "get", "The same", true},
    {"/health/live", "get", "200 while the event loop is alive", true},
    {"/ping", "get", "As /health", true},
    {"/metrics", "get", "Prometheus metrics", false},
    {"/config-info", "get", "The configuration", false},
    {"/reset_prefix_cache", "post", "Forget what the prefix cache holds", false},
};

std::string_view json_type(FieldType type) {
  switch (type) {
    case FieldType::boolean: return "boolean";
    case FieldType::integer: return "integer";
    case FieldType::number: return "number";
    case FieldType::string: return "string";
    case FieldType::list: return "array";
    case FieldType::object: return "object";
    case FieldType::any: break;
  }
  return {};
}

/// A whole number is written as one.
Json bound(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return static_cast<double>(whole) == value ? Json(whole) : Json(value);
}

/// null means absent, in every field.
Json field_schema(const RequestField& field) {
  Json schema = Json::object();
  if (const std::string_view type = json_type(field.type); !type.empty()) schema["type"] = {type, "null"};
  if (std::isfinite(field.bounds.low)) schema["minimum"] = bound(field.bounds.low);
  if (std::isfinite(field.bounds.high)) schema["maximum"] = bound(field.bounds.high);
  schema["description"] = field.about.empty() ? "accepted without effect" : field.about;
  return schema;
}

Json members(std::initializer_list<const char*> names) {
  Json list = Json::array();
  for (const char* name : names) list.push_back(name);
  return list;
}

Json body_schema(const BodyRoute& route, const config::LimitOptions& limits) {
  Json properties = Json::object();
  for (const RequestField& field : request_fields()) {
    if ((field.apis & route.api) != 0) properties[std::string(field.name)] = field_schema(field);
  }
  if (properties.contains("n")) properties["n"]["maximum"] = limits.max_n;
  if (properties.contains("best_of")) properties["best_of"]["maximum"] = limits.max_best_of;
  for (const char* name : route.required) {
    if (Json& type = properties[name]["type"]; type.is_array()) type = type[0];
  }
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", members(route.required)}};
}

Json reference(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }

Json json_content(Json schema) { return {{"application/json", {{"schema", std::move(schema)}}}}; }

Json body_route(const BodyRoute& route, const config::LimitOptions& limits) {
  Json content = json_content({{"type", "object"}, {"required", members(route.answer)}});
  if (route.streams) content["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  Json answers = {{"200", {{"description", "the answer"}, {"content", std::move(content)}}}};
  answers["default"] = {
      {"description", "an error"},
      {"content", json_content(reference(route.anthropic_errors ? "MessagesError" : "Error"))}};
  return {{"summary", route.about},
          {"requestBody", {{"required", true}, {"content", json_content(body_schema(route, limits))}}},
          {"responses", std::move(answers)}};
}

Json error_schemas() {
  Json own = {{"type", "object"}, {"required", {"message", "type", "param", "code"}}};
  Json anthropic = {{"type", "object"}, {"required", {"type", "message"}}};
  return {{"Error",
           {{"type", "object"},
            {"required", Json::array({"error"})},
            {"properties", {{"error", std::move(own)}}}}},
          {"MessagesError",
           {{"type", "object"},
            {"required", {"type", "error"}},
            {"properties", {{"type", {{"const", "error"}}}, {"error", std::move(anthropic)}}}}}};
}

}  // namespace

std::string openapi_document(const config::LimitOptions& limits) {
  Json paths = Json::object();
  for (const BodyRoute& route : kBodyRoutes)
    paths[std::string(route.path)]["post"] = body_route(route, limits);
  for (const PageRoute& page : kPageRoutes) {
    Json route = {{"summary", page.about}, {"responses", {{"default", {{"description", page.about}}}}}};
    if (page.open) route["security"] = Json::array();
    paths[std::string(page.path)][std::string(page.method)] = std::move(route);
  }
  Json schemes = {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
                  {"x-api-key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
  Json either = Json::array();  // no key, where none is configured, or one of the two headers
  either.push_back(Json::object());
  for (const char* name : {"bearer", "x-api-key"}) either.push_back({{name, Json::array()}});
  Json document = {{"openapi", "3.1.0"}, {"info", {{"title", "Troupe"}, {"version", "1"}}}};
  document["paths"] = std::move(paths);
  document["components"] = {{"schemas", error_schemas()}, {"securitySchemes", std::move(schemes)}};
  document["security"] = std::move(either);
  return to_text(document);
}

}  // namespace troupe::http
