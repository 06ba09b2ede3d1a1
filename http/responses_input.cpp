#include "http/responses_input.h"

#include <algorithm>

#include "http/chat_body.h"
#include "http/client_policy.h"

namespace troupe::http {
namespace {

constexpr std::string_view kInputTextTypes[] = {"input_text", "output_text", "text", "refusal"};

class InputReader {
 public:
  explicit InputReader(Fields& own) : own_(own) {}

  /// Adds the item to the messages.
  Status read(Json& item, const std::string& path) {
    if (!item.is_object()) {
      return invalid(path + " must be an object, got " + excerpt(item), path, "invalid_type");
    }
    const Json* given = member_of(item, "type");
    if (given != nullptr && !given->is_string()) {
      return invalid(path + ".type must be a string, got " + excerpt(*given), path + ".type", "invalid_type");
    }
    const std::string type = given != nullptr ? given->get<std::string>() : "message";
    if (type == "message") return message(item, path);
    if (type == "reasoning") return reasoning(item, path);
    if (type == "function_call") return call(item, path);
    if (type == "function_call_output") return result(item, path);
    if (const ItemPolicy* policy = find_item_policy(type)) return other(item, *policy, path);
    return invalid(path +
                       ".type must be \"message\", \"reasoning\", \"function_call\", "
                       "\"function_call_output\" or the call or output of another tool, got \"" +
                       cut(type) + "\"",
                   path + ".type", "invalid_value");
  }

  Json take() { return messages_.take(); }

  void add_system(Json content) { messages_.add("system", std::move(content)); }
  void add_user(Json content) { messages_.add("user", std::move(content)); }

 private:
  Status message(Json& item, const std::string& path) {
    constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};
    const Json* role = member_of(item, "role");
    if (role == nullptr || !role->is_string() ||
        std::find(std::begin(kRoles), std::end(kRoles), role->get_ref<const std::string&>()) ==
            std::end(kRoles)) {
      return invalid(path + ".role must be user, assistant, system or developer, got " +
                         (role == nullptr ? "nothing" : excerpt(*role)),
                     path + ".role", "invalid_value");
    }
    Json* content = member_of(item, "content");
    if (content == nullptr) {
      return missing_field(path + ".content");
    }
    auto text = text_content(*content, path + ".content", kInputTextTypes);
    if (!text.ok()) return text.status();
    if (*role == "assistant") {
      messages_.add_assistant_text(*std::move(text));
    } else {
      messages_.add(role->get_ref<const std::string&>(), *std::move(text));
    }
    return {};
  }

  /// The thoughts' text; a summary in its place if the text is not there. Encrypted thoughts are of another
  /// server.
  Status reasoning(Json& item, const std::string& path) {
    std::string thoughts;
    for (const char* name : {"content", "summary"}) {
      Json* parts = member_of(item, name);
      if (parts == nullptr || !thoughts.empty()) continue;
      constexpr std::string_view kTypes[] = {"reasoning_text", "summary_text", "text"};
      auto text = text_content(*parts, path + "." + name, kTypes);
      if (!text.ok()) return text.status();
      if (text->is_string()) {
        thoughts = text->get<std::string>();
        continue;
      }
      for (const Json& part : *text) {
        if (!thoughts.empty()) thoughts += '\n';
        thoughts += part["text"].get_ref<const std::string&>();
      }
    }
    if (!thoughts.empty()) messages_.add_thoughts(std::move(thoughts));
    return {};
  }

  Status other(Json& item, const ItemPolicy& policy, const std::string& path) {
    switch (policy.use) {
      case PartUse::left_out: own_.leave_out(path); return {};
      case PartUse::refused: return not_offered(path, std::string(policy.given));
      case PartUse::call: return other_call(item, policy, path);
      case PartUse::result: break;
    }
    if (Json* output = member_of(item, "output"); output != nullptr && !is_text(*output))
      *output = to_text(*output);
    return result(item, path);
  }

  /// The call of a tool that is no function: its arguments are what it was given, an object or, under the
  /// member's name, a text.
  Status other_call(Json& item, const ItemPolicy& policy, const std::string& path) {
    const Json* id =
        member_of(item, "call_id") != nullptr ? member_of(item, "call_id") : member_of(item, "id");
    if (id == nullptr || !id->is_string()) {
      return invalid(path + ".call_id must be a string", path + ".call_id", "invalid_value");
    }
    std::string name(policy.tool);
    if (name.empty()) {
      const Json* own_name = member_of(item, "name");
      if (own_name == nullptr || !own_name->is_string()) {
        return invalid(path + ".name must be a string", path + ".name", "invalid_value");
      }
      name = own_name->get_ref<const std::string&>();
    }
    Json arguments = Json::object();
    Json* given = member_of(item, policy.given);
    if (given != nullptr && given->is_object()) {
      arguments = std::move(*given);
    } else if (given != nullptr) {
      arguments[std::string(policy.given)] = std::move(*given);
    }
    messages_.add_call(id->get_ref<const std::string&>(), std::move(name), std::move(arguments));
    return {};
  }

  /// A string, or a list of parts with a type.
  static bool is_text(const Json& output) {
    if (!output.is_array()) return output.is_string();
    return std::all_of(output.begin(), output.end(),
                       [](const Json& part) { return part.is_object() && part.contains("type"); });
  }

  Status call(Json& item, const std::string& path) {
    for (const char* name : {"call_id", "name"}) {
      const Json* value = member_of(item, name);
      if (value == nullptr || !value->is_string()) {
        const std::string field = path + "." + name;
        return invalid(field + " must be a string", field, "invalid_value");
      }
    }
    if (Status status = read_arguments(item, path); !status.ok()) return status;
    Json* arguments = member_of(item, "arguments");
    messages_.add_call(item["call_id"].get<std::string>(), item["name"].get<std::string>(),
                       arguments != nullptr ? std::move(*arguments) : Json::object());
    return {};
  }

  Status result(Json& item, const std::string& path) {
    const Json* id = member_of(item, "call_id");
    if (id == nullptr && item["type"] == "local_shell_call_output")
      id = member_of(item, "id");  // which the call's was
    if (id == nullptr || !id->is_string()) {
      return invalid(path + ".call_id must name the call that this item answers", path + ".call_id",
                     "invalid_value");
    }
    Json* output = member_of(item, "output");
    if (output == nullptr) {
      return missing_field(path + ".output");
    }
    auto text = text_content(*output, path + ".output", kInputTextTypes);
    if (!text.ok()) return text.status();
    messages_.add_result(id->get<std::string>(), *std::move(text));
    return {};
  }

  Fields& own_;
  MessageList messages_;
};

}  // namespace

Json read_response_input(Fields& own, const config::LimitOptions& limits) {
  InputReader reader(own);
  if (auto instructions = own.string("instructions")) reader.add_system(*std::move(instructions));
  Json* input = own.find("input");
  if (input == nullptr) {
    own.fail("input", "is missing", "missing_required_parameter");
    return {};
  }
  if (input->is_string()) {
    reader.add_user(std::move(*input));
    return reader.take();
  }
  if (!input->is_array()) {
    own.fail("input", "must be a string or a list of items, got " + excerpt(*input), "invalid_type");
    return {};
  }
  if (input->empty()) own.fail("input", "must hold at least one item", "empty_array");
  if (input->size() > static_cast<std::size_t>(limits.max_messages)) {
    own.fail("input",
             "may hold at most " + std::to_string(limits.max_messages) + " items, got " +
                 std::to_string(input->size()),
             "too_many_elements");
    return {};
  }
  for (std::size_t i = 0; i < input->size() && own.ok(); ++i) {
    own.fail(reader.read((*input)[i], "input." + std::to_string(i)));
  }
  return reader.take();
}

}  // namespace troupe::http
