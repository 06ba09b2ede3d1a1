#include "http/api/responses_input.h"

#include <algorithm>
#include <utility>

#include "http/api/chat_body.h"
#include "http/api/client_policy.h"

namespace troupe::http {
namespace {

constexpr std::string_view kInputTextTypes[] = {"input_text", "output_text", "text", "refusal"};

class InputReader {
 public:
  InputReader(Fields& own, MediaParts& media) : own_(own), media_(media) {}

  /// Adds the item to the messages.
  Status read(Json& item, const std::string& path) {
    if (!item.is_object()) {
      return invalid(path + " must be an object, got " + excerpt(item), path, "invalid_type");
    }
    const Json* given = member_of(item, "type");
    const std::string* text = json::text(given);
    if (given != nullptr && text == nullptr) {
      return invalid(path + ".type must be a string, got " + excerpt(*given), path + ".type", "invalid_type");
    }
    const std::string type = text != nullptr ? *text : "message";
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
    const Json* given = member_of(item, "role");
    const std::string* role = json::text(given);
    if (role == nullptr || std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles)) {
      return invalid(path + ".role must be user, assistant, system or developer, got " +
                         (given == nullptr ? "nothing" : excerpt(*given)),
                     path + ".role", "invalid_value");
    }
    Json* content = member_of(item, "content");
    if (content == nullptr) {
      return missing_field(path + ".content");
    }
    const bool of_assistant = *role == "assistant";
    auto read = read_content(*content, path + ".content", kInputTextTypes,
                             of_assistant ? ContentKind::text : ContentKind::visual, media_);
    if (!read.ok()) return read.status();
    if (of_assistant) {
      messages_.add_assistant_text(*std::move(read));
    } else {
      messages_.add(*role, *std::move(read));
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
      auto text = read_content(*parts, path + "." + name, kTypes, ContentKind::text, media_);
      if (!text.ok()) return text.status();
      if (std::string* whole = json::text(*text)) {
        thoughts = std::move(*whole);
        continue;
      }
      for (const Json& part : json::items(std::as_const(*text))) {
        const std::string* piece = json::text(json::member(part, "text"));
        if (piece == nullptr) continue;
        if (!thoughts.empty()) thoughts += '\n';
        thoughts += *piece;
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
    const std::string* id =
        json::text(member_of(item, member_of(item, "call_id") != nullptr ? "call_id" : "id"));
    if (id == nullptr) {
      return invalid(path + ".call_id must be a string", path + ".call_id", "invalid_value");
    }
    std::string name(policy.tool);
    if (name.empty()) {
      const std::string* own_name = json::text(member_of(item, "name"));
      if (own_name == nullptr) {
        return invalid(path + ".name must be a string", path + ".name", "invalid_value");
      }
      name = *own_name;
    }
    Json arguments = Json::object();
    Json* given = member_of(item, policy.given);
    if (given != nullptr && given->is_object()) {
      arguments = std::move(*given);
    } else if (given != nullptr) {
      json::put(arguments, policy.given, std::move(*given));
    }
    messages_.add_call(*id, std::move(name), std::move(arguments));
    return {};
  }

  /// A string, or a list of parts with a type.
  static bool is_text(const Json& output) {
    if (!output.is_array()) return output.is_string();
    return std::all_of(output.begin(), output.end(),
                       [](const Json& part) { return json::has(part, "type"); });
  }

  Status call(Json& item, const std::string& path) {
    std::string texts[2];
    std::size_t read = 0;
    for (const char* name : {"call_id", "name"}) {
      const std::string* value = json::text(member_of(item, name));
      if (value == nullptr) {
        const std::string field = path + "." + name;
        return invalid(field + " must be a string", field, "invalid_value");
      }
      texts[read++] = *value;
    }
    if (Status status = read_arguments(item, path); !status.ok()) return status;
    Json* arguments = member_of(item, "arguments");
    messages_.add_call(std::move(texts[0]), std::move(texts[1]),
                       arguments != nullptr ? std::move(*arguments) : Json::object());
    return {};
  }

  Status result(Json& item, const std::string& path) {
    const Json* given = member_of(item, "call_id");
    if (given == nullptr && json::is(json::member(item, "type"), "local_shell_call_output")) {
      given = member_of(item, "id");  // which the call's was
    }
    const std::string* id = json::text(given);
    if (id == nullptr) {
      return invalid(path + ".call_id must name the call that this item answers", path + ".call_id",
                     "invalid_value");
    }
    Json* output = member_of(item, "output");
    if (output == nullptr) {
      return missing_field(path + ".output");
    }
    auto read = read_content(*output, path + ".output", kInputTextTypes, ContentKind::visual, media_);
    if (!read.ok()) return read.status();
    messages_.add_result(*id, *std::move(read));
    return {};
  }

  Fields& own_;
  MediaParts& media_;
  MessageList messages_;
};

}  // namespace

Json read_response_input(Fields& own, const config::LimitOptions& limits, MediaParts& media) {
  InputReader reader(own, media);
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
  std::size_t i = 0;
  for (Json& item : json::items(*input)) {
    if (own.ok()) own.fail(reader.read(item, "input." + std::to_string(i++)));
  }
  return reader.take();
}

}  // namespace troupe::http
