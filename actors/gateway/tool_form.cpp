#include "actors/gateway/tool_form.h"

#include <string>
#include <utility>

namespace troupe {
namespace {

using http::AnswerForm;
using http::Json;
using http::ToolRules;

constexpr const char* kMark = "place";  // a member of formats while a form is made

const char* field_of(const ToolRules& rules) { return rules.legacy ? "functions" : "tools"; }

Json literal(std::string value) { return {{"type", "const_string"}, {"value", std::move(value)}}; }

Json schema(Json value) { return {{"type", "json_schema"}, {"json_schema", std::move(value)}}; }

Json sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }

/// One of several formats.
Json either(Json elements) {
  if (elements.size() == 1) return std::move(elements[0]);
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

/// The begin or end of a call: its token where the vocabulary has one, so that the parser sees a tag.
Json mark(Tag tag, const AnswerSyntax& syntax) {
  const TokenId id = syntax.token_of(tag);
  if (id < 0) return std::string(tag_text(tag));
  return {{"type", "token"}, {"token", id}};
}

bool is_strict(const Json& function) { return json::is_true(json::member(function, "strict")); }

/// Marks a format of which the part `path` is in the request at `place`. take_places() removes the mark.
Json from_request(Json format, const char* path, std::string place) {
  format[kMark] = {path, std::move(place)};
  return format;
}

/// Removes the marks of from_request() and lists what they say. `path` is that of the node within the form.
void take_places(Json& node, const std::string& path, AnswerForm& form) {
  std::size_t i = 0;
  for (Json& item : json::items(node)) take_places(item, path + "." + std::to_string(i++), form);
  json::Members* members = json::object(node);
  if (members == nullptr) return;
  if (const Json* mark = json::member(&node, kMark)) {
    const auto ends = json::items(*mark);
    form.places.emplace_back(path + *json::text(ends[0]), *json::text(ends[1]));
    node.erase(kMark);
    return;  // what is below it is the client's
  }
  for (auto& [key, value] : *members) take_places(value, path + "." + key, form);
}

/// The format of a call's arguments: any object, unless the function has a schema that is to be enforced.
Json arguments_format(const Json& function, bool enforced, std::string place) {
  const auto parameters = function.find("parameters");
  if (!enforced || parameters == function.end() || !parameters->is_object() || parameters->empty()) {
    return schema({{"type", "object"}});
  }
  Json wanted = *parameters;
  const auto says = [&](const char* keyword) { return wanted.contains(keyword); };
  if (!says("type") && !says("$ref") && !says("anyOf") && !says("oneOf") && !says("allOf")) {
    wanted["type"] = "object";
  }
  return from_request(schema(std::move(wanted)), ".json_schema", std::move(place));
}

/// A call of one of the tools, or of the named one, with its tags.
Json call_format(const Json& tools, const ToolRules& rules, const AnswerSyntax& syntax) {
  const bool forced = rules.choice != ToolRules::Choice::automatic;
  Json calls = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& function = *json::member(tools[i], "function");
    const std::string& name = *json::text(json::member(function, "name"));
    if (rules.choice == ToolRules::Choice::named && name != rules.name) continue;
    Json arguments = arguments_format(
        function, forced || is_strict(function),
        std::string(field_of(rules)) + "." + std::to_string(rules.place_of(i)) + "." + rules.schema_field);
    calls.push_back(sequence(Json::array(
        {literal("\n{\"name\": \"" + name + "\", \"arguments\": "), std::move(arguments), literal("}\n")})));
  }
  return {{"type", "tag"},
          {"begin", mark(Tag::tool_call, syntax)},
          {"content", either(std::move(calls))},
          {"end", mark(Tag::tool_call_end, syntax)}};
}

Json newlines(int most) {
  return {{"type", "repeat"}, {"min", 0}, {"max", most}, {"content", literal("\n")}};
}

/// Nothing but calls. A newline may follow each, also the last: models write one before they end.
Json only_calls(Json call, const ToolRules& rules) {
  const bool single = !rules.parallel || rules.choice == ToolRules::Choice::named;
  Json line = sequence(Json::array({std::move(call), newlines(1)}));
  if (single) return line;
  return {{"type", "plus"}, {"content", std::move(line)}};
}

/// ERNIE's models write newlines between </think> and what follows.
Json after_newlines(Json format, const AnswerSyntax& syntax) {
  if (syntax.tools() == ToolParser::hermes) return format;
  return sequence(Json::array({newlines(3), std::move(format)}));
}

/// Free text with calls in it.
Json text_with_calls(Json call, const ToolRules& rules, const AnswerSyntax& syntax) {
  const TokenId id = syntax.token_of(Tag::tool_call);
  Json format = {{"type", id < 0 ? "triggered_tags" : "token_triggered_tags"},
                 {"tags", Json::array({std::move(call)})},
                 {"at_least_one", false},
                 {"stop_after_first", !rules.parallel}};
  if (id < 0) {
    format["triggers"] = Json::array({std::string(tag_text(Tag::tool_call))});
  } else {
    format["trigger_tokens"] = Json::array({id});
  }
  return format;
}

/// A client's form as a part of a structural tag; null when it cannot be one.
Json as_format(const AnswerForm& form) {
  switch (form.kind) {
    case AnswerForm::Kind::free: return {{"type", "any_text"}};
    case AnswerForm::Kind::json_object: return schema({{"type", "object"}});
    case AnswerForm::Kind::json_schema: return from_request(schema(form.value), ".json_schema", form.param);
    case AnswerForm::Kind::regex:
      return from_request({{"type", "regex"}, {"pattern", form.value}}, ".pattern", form.param);
    case AnswerForm::Kind::grammar:
      return from_request({{"type", "grammar"}, {"grammar", form.value}}, ".grammar", form.param);
    case AnswerForm::Kind::choice: {
      Json values = Json::array();
      for (const Json& value : json::items(form.value)) values.push_back(literal(*json::text(value)));
      return either(std::move(values));
    }
    case AnswerForm::Kind::structural_tag: {
      const auto format = form.value.find("format");
      if (format == form.value.end() || !format->is_object()) return {};
      return from_request(*format, "", form.param + ".format");
    }
  }
  return {};
}

}  // namespace

Result<AnswerForm> tool_form(const Json& tools, const ToolRules& rules, const AnswerSyntax& syntax,
                             const AnswerForm& other) {
  Json call = call_format(tools, rules, syntax);
  Json format;
  if (rules.choice != ToolRules::Choice::automatic) {
    format = after_newlines(only_calls(std::move(call), rules), syntax);
  } else if (other.kind == AnswerForm::Kind::free) {
    format = text_with_calls(std::move(call), rules, syntax);
  } else {
    Json words = as_format(other);
    if (words.is_null()) {
      return invalid(
          other.param +
              " cannot be combined with tools in its older form: give {\"type\": \"structural_tag\", "
              "\"format\": …}",
          other.param, "invalid_value");
    }
    format =
        after_newlines(either(Json::array({only_calls(std::move(call), rules), std::move(words)})), syntax);
  }
  AnswerForm form;
  form.kind = AnswerForm::Kind::structural_tag;
  form.value = {{"type", "structural_tag"}, {"format", std::move(format)}};
  form.param = field_of(rules);
  take_places(form.value, "", form);
  return form;
}

}  // namespace troupe
