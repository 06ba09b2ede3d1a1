// Tools of a chat request: which functions the model may call, whether it has to, and the older fields
// `functions` and `function_call`, which become tools here.
#include <algorithm>

#include "http/api/client_policy.h"
#include "http/api/object_schema.h"
#include "http/api/openai_fields.h"
#include "http/api/schema_patterns.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMaxFunctionName = 128;  // what Anthropic allows; names of tools behind MCP are long

bool is_function_name(const Json& value) {
  const std::string* given = json::text(value);
  if (given == nullptr) return false;
  const std::string& text = *given;
  return !text.empty() && text.size() <= kMaxFunctionName &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                  c == '-';
         });
}

Status invalid_tool(const std::string& path, const std::string& what) {
  return invalid(path + " " + what, path, "invalid_tool");
}

/// The member; nullptr when it is absent or null.
const Json* member(const Json& object, const char* name) { return json::given(object, name); }

/// The name of a tool that check_tool() has passed.
const std::string& name_of(const Json& tool) {
  return *json::text(json::member(json::member(tool, "function"), "name"));
}

bool is_strict(const Json& tool) {
  return json::is_true(json::member(json::member(&tool, "function"), "strict"));
}

Status check_function(const Json& function, const std::string& path) {
  if (!function.is_object()) return invalid_tool(path, "must be an object, got " + excerpt(function));
  const Json* name = member(function, "name");
  if (name == nullptr) return invalid_tool(path + ".name", "is missing");
  if (!is_function_name(*name)) {
    return invalid_tool(path + ".name", "must be 1 to " + std::to_string(kMaxFunctionName) +
                                            " letters, digits, - and _, got " + excerpt(*name));
  }
  if (const Json* description = member(function, "description"); description && !description->is_string()) {
    return invalid_tool(path + ".description", "must be a string, got " + excerpt(*description));
  }
  if (const Json* parameters = member(function, "parameters")) {
    const std::string place = path + ".parameters";
    if (!parameters->is_object()) {
      return invalid_tool(place, "must be a JSON schema, which is an object, got " + excerpt(*parameters));
    }
    if (const auto fault = bad_pattern(*parameters)) return invalid_tool(place + fault->path, fault->what);
  }
  if (const Json* strict = member(function, "strict"); strict && !strict->is_boolean()) {
    return invalid_tool(path + ".strict", "must be true or false, got " + excerpt(*strict));
  }
  return {};
}

Status check_tool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) return invalid_tool(path, "must be an object, got " + excerpt(tool));
  const Json* type = member(tool, "type");
  if (type == nullptr || *type != "function") {
    return invalid_tool(path + ".type",
                        "must be \"function\"" + (type ? ", got " + excerpt(*type) : std::string()));
  }
  const Json* function = member(tool, "function");
  if (function == nullptr) return invalid_tool(path + ".function", "is missing");
  return check_function(*function, path + ".function");
}

/// Index of the first tool whose name an earlier one has; the number of tools when there is none.
std::size_t first_repeated(const Json& tools) {
  for (std::size_t i = 1; i < tools.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (name_of(tools[i]) == name_of(tools[j])) return i;
    }
  }
  return tools.size();
}

/// The list as {type: "function", function} each, checked; null after a failure. `functions`: its items are
/// functions. `places`: of those that are not left out, in the client's list.
Json read_list(Fields& fields, std::string_view name, int most, bool functions,
               std::vector<std::size_t>& places) {
  Json* list = fields.find(name);
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > static_cast<std::size_t>(most)) {
    fields.fail(name,
                "must be a list of at most " + std::to_string(most) + " tools, got " +
                    (list->is_array() ? std::to_string(list->size()) : excerpt(*list)),
                "invalid_tool");
    return {};
  }
  Json tools = Json::array();
  const auto path = [&](std::size_t i) { return std::string(name) + "." + std::to_string(i); };
  for (std::size_t i = 0; i < list->size(); ++i) {
    Json& item = (*list)[i];
    if (!functions && is_left_out_tool(item, "function")) {
      fields.leave_out(path(i));
      continue;
    }
    if (Status status = functions ? check_function(item, path(i)) : check_tool(item, path(i)); !status.ok()) {
      fields.fail(std::move(status));
      return {};
    }
    tools.push_back(functions ? Json{{"type", "function"}, {"function", std::move(item)}} : std::move(item));
    places.push_back(i);
  }
  if (const std::size_t i = first_repeated(tools); i < tools.size()) {
    fields.fail(invalid_tool(
        path(places[i]) + (functions ? ".name" : ".function.name"),
        "is " + excerpt(name_of(tools[i])) + ", which an earlier tool is called: names must differ"));
    return {};
  }
  return tools;
}

bool has_tool(const Json& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(), [&](const Json& tool) { return name_of(tool) == name; });
}

/// The names of the tools, for an error; cut when there are many.
std::string names_of(const Json& tools) {
  constexpr std::size_t kMost = 100;
  std::string names;
  for (const Json& tool : tools) {
    if (names.size() > kMost) return names + ", …";
    names += (names.empty() ? "" : ", ") + excerpt(name_of(tool));
  }
  return names;
}

/// The function that an object names: {type: "function", function: {name}} or, for function_call, {name}.
const Json* chosen_name(const Json& choice, bool legacy) {
  if (legacy) return choice.is_object() ? member(choice, "name") : nullptr;
  const Json* function = choice.is_object() ? member(choice, "function") : nullptr;
  return function != nullptr && function->is_object() ? member(*function, "name") : nullptr;
}

void read_choice(Fields& fields, std::string_view field, const Json& tools, ToolRules& rules) {
  using Choice = ToolRules::Choice;
  rules.choice = tools.empty() ? Choice::none : Choice::automatic;
  const Json* choice = fields.find(field);
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    rules.choice = Choice::none;
    return;
  }
  const Json* name = chosen_name(*choice, rules.legacy);
  if (*choice == "required" && !rules.legacy) {
    rules.choice = Choice::required;
  } else if (const std::string* text = json::text(name)) {
    rules.choice = Choice::named;
    rules.name = *text;
  } else {
    fields.fail(field,
                rules.legacy
                    ? "must be \"none\", \"auto\" or {\"name\": …}, got " + excerpt(*choice)
                    : "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": "
                      "{\"name\": …}}, got " +
                          excerpt(*choice),
                "invalid_value");
    return;
  }
  if (tools.empty()) {
    fields.fail(field,
                fields.left_out().empty()
                    ? "asks for a call, but the request has no tools"
                    : "asks for a call, but the request has no tools of a kind that this server offers",
                "invalid_value");
  } else if (rules.choice == Choice::named && !has_tool(tools, rules.name)) {
    fields.fail(field, "names \"" + cut(rules.name) + "\", which is not among the tools: " + names_of(tools),
                "invalid_value");
  }
}

/// Arguments that are enforced are an object: fails at a schema that allows something else.
void check_enforced(Fields& fields, std::string_view field, const Json& tools, const ToolRules& rules) {
  using Choice = ToolRules::Choice;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& function = *json::member(tools[i], "function");
    const Json* parameters = member(function, "parameters");
    const bool called = rules.choice == Choice::required ||
                        (rules.choice == Choice::named && name_of(tools[i]) == rules.name) ||
                        (rules.choice == Choice::automatic && is_strict(tools[i]));
    if (parameters == nullptr || !called) continue;
    const std::optional<SchemaFault> fault = beyond_objects(*parameters);
    if (!fault) continue;
    const std::string place =
        std::string(field) + "." + std::to_string(rules.place_of(i)) + "." + rules.schema_field;
    return fields.fail(invalid_tool(place + fault->path, fault->what));
  }
}

}  // namespace

Json read_tools(Fields& fields, const RequestRules& rules, ToolRules& tool_rules) {
  tool_rules = {};
  tool_rules.parallel = fields.boolean("parallel_tool_calls", true);
  tool_rules.legacy = fields.find("functions") != nullptr && fields.find("tools") == nullptr;
  if (fields.find("functions") != nullptr && !tool_rules.legacy) {
    fields.fail("functions", "cannot be given together with tools, whose older form it is", "invalid_value");
  }
  if (tool_rules.legacy) {
    tool_rules.parallel = false;
    tool_rules.schema_field = "parameters";
  }
  const char* const field = tool_rules.legacy ? "functions" : "tools";
  Json tools = read_list(fields, field, rules.limits.max_tools, tool_rules.legacy, tool_rules.places);
  read_choice(fields, tool_rules.legacy ? "function_call" : "tool_choice", tools, tool_rules);
  check_enforced(fields, field, tools, tool_rules);
  if (tool_rules.choice == ToolRules::Choice::none) return {};
  return tools;
}

Status settle_tools(const ToolRules& tools, const RequestRules& rules, Request& request) {
  using Choice = ToolRules::Choice;
  const ModelFacts& model = rules.model;
  const auto unsupported = [](const std::string& field, const std::string& why) {
    return Status{Code::unsupported, field + " " + why, field, "unsupported_parameter"};
  };
  const bool forced = tools.choice == Choice::required || tools.choice == Choice::named;
  const std::string list = tools.legacy ? "functions" : "tools";
  const std::string asking = !forced ? list : tools.legacy ? "function_call" : "tool_choice";
  if (forced && !model.tool_form)
    return unsupported(asking,
                       "asks for a call, but this server looks for none in answers: start it with "
                       "--tool-call-parser");
  if (forced && !model.offers_forms)
    return unsupported(asking,
                       "asks for a call, but this server holds no answer to a form: start it with "
                       "--guided-decoding-backend");
  const Conversation& conversation = request.source.conversation;
  const bool renders = request.source.ids.empty() && !conversation.without_template;
  if (!conversation.tools.empty() && renders && !model.template_reads_tools)
    return unsupported(list,
                       "cannot be given: this model's chat template does not show them to the model; "
                       "start the server with --chat-template and one that does");
  Generation& generation = request.generation;
  generation.limits.tools = model.tool_form && tools.choice != Choice::none;
  generation.limits.parallel_calls = tools.parallel;
  request.answer.function_call = tools.legacy;
  if (!generation.limits.tools || !model.offers_forms) return {};
  // A form of the text alone would not let the model call.
  const bool enforced =
      forced || std::any_of(conversation.tools.begin(), conversation.tools.end(), is_strict);
  if (generation.form.kind == AnswerForm::Kind::free && !enforced) return {};
  auto form = model.tool_form(conversation.tools, tools, generation.form);
  if (!form.ok()) return form.status();
  if (const std::int32_t least = generation.sampling.min_tokens; least > 1) {
    return invalid("min_tokens cannot be above 1 together with " + asking +
                       ", whose enforced calls say when an answer is complete, got " + std::to_string(least),
                   "min_tokens", "invalid_value");
  }
  generation.form = *std::move(form);
  return {};
}

}  // namespace troupe::http
