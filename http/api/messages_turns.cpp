#include "http/api/messages_turns.h"

#include <algorithm>
#include <utility>

#include "http/api/chat_body.h"
#include "http/api/client_policy.h"

namespace troupe::http {
namespace {

constexpr std::string_view kBlockTextTypes[] = {"text"};

/// The string member of a block, moved out of it.
Result<std::string> block_string(Json& block, const char* name, const std::string& path) {
  const std::string field = path + "." + name;
  Json* value = member_of(block, name);
  if (value == nullptr) return missing_field(field);
  std::string* text = json::text(*value);
  if (text == nullptr) {
    return invalid(field + " must be a string, got " + excerpt(*value), field, "invalid_type");
  }
  return std::move(*text);
}

class BlockReader {
 public:
  BlockReader(Fields& own, MediaParts& media) : own_(own), media_(media) {}

  void add_system(Json content) { messages_.add("system", std::move(content)); }

  Status read(Json& message, const std::string& path) {
    if (!message.is_object()) {
      return invalid(path + " must be an object with role and content, got " + excerpt(message), path,
                     "invalid_type");
    }
    const Json* role = member_of(message, "role");
    if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system")) {
      return invalid(
          path + ".role must be user or assistant, got " + (role == nullptr ? "nothing" : excerpt(*role)),
          path + ".role", "invalid_value");
    }
    Json* content = member_of(message, "content");
    const std::string place = path + ".content";
    if (content == nullptr) return missing_field(place);
    if (*role == "system") {
      auto text = read_content(*content, place, kBlockTextTypes, ContentKind::text, media_);
      if (text.ok()) messages_.add("system", *std::move(text));
      return text.status();
    }
    assistant_ = *role == "assistant";
    parts_ = Json::array();
    if (content->is_string()) {
      parts_.push_back({{"type", "text"}, {"text", std::move(*content)}});
      give_parts();
      return {};
    }
    if (!content->is_array()) {
      return invalid(place + " must be a string or a list of blocks, got " + excerpt(*content), place,
                     "invalid_type");
    }
    for (std::size_t i = 0; i < content->size(); ++i) {
      if (Status status = block((*content)[i], place + "." + std::to_string(i)); !status.ok()) return status;
    }
    if (assistant_ && content->empty())
      parts_.push_back({{"type", "text"}, {"text", ""}});  // a turn of no words
    give_parts();
    return {};
  }

  Json take() { return messages_.take(); }

 private:
  Status block(Json& block, const std::string& path) {
    const Json* type = member_of(block, "type");
    if (is_left_out_block(block)) {
      own_.leave_out(path);
      return {};
    }
    if (assistant_ && type != nullptr) {
      if (*type == "thinking") return thinking(block, path);
      if (*type == "tool_use") return tool_use(block, path);
    }
    if (!assistant_ && type != nullptr && *type == "tool_result") return tool_result(block, path);
    return content(block, path);
  }

  Status content(Json& block, const std::string& path) {
    constexpr std::string_view kOfUser[] = {"text", "tool_result"};
    constexpr std::string_view kOfAssistant[] = {"text", "thinking", "tool_use"};
    auto part = assistant_ ? read_content_part(block, path, kOfAssistant, ContentKind::text, media_)
                           : read_content_part(block, path, kOfUser, ContentKind::visual, media_);
    if (!part.ok()) return part.status();
    parts_.push_back(*std::move(part));
    return {};
  }

  Status thinking(Json& block, const std::string& path) {
    auto thoughts = block_string(block, "thinking", path);
    if (!thoughts.ok()) return thoughts.status();
    give_parts();
    messages_.add_thoughts(*std::move(thoughts));
    return {};
  }

  Status tool_use(Json& block, const std::string& path) {
    auto id = block_string(block, "id", path);
    if (!id.ok()) return id.status();
    auto name = block_string(block, "name", path);
    if (!name.ok()) return name.status();
    Json* input = member_of(block, "input");
    if (input != nullptr && !input->is_object()) {
      return invalid(path + ".input must be an object, got " + excerpt(*input), path + ".input",
                     "invalid_type");
    }
    give_parts();
    messages_.add_call(*std::move(id), *std::move(name),
                       input != nullptr ? std::move(*input) : Json::object());
    return {};
  }

  Status tool_result(Json& block, const std::string& path) {
    auto id = block_string(block, "tool_use_id", path);
    if (!id.ok()) return id.status();
    Json* content = member_of(block, "content");
    Json result = "";
    if (content != nullptr) {
      leave_out_parts(*content, path + ".content");
      auto read = read_content(*content, path + ".content", kBlockTextTypes, ContentKind::visual, media_);
      if (!read.ok()) return read.status();
      result = *std::move(read);
    }
    give_parts();
    messages_.add_result(*std::move(id), std::move(result));
    return {};
  }

  /// Takes the parts that are left out from a result's list.
  void leave_out_parts(Json& content, const std::string& path) {
    if (!content.is_array()) return;
    Json kept = Json::array();
    std::size_t i = 0;
    for (Json& part : json::items(content)) {
      if (is_left_out_block(part)) {
        own_.leave_out(path + "." + std::to_string(i));
      } else {
        kept.push_back(std::move(part));
      }
      ++i;
    }
    content = std::move(kept);
  }

  /// The texts and images since the last block of another kind become a message, or the text of the
  /// assistant's turn.
  void give_parts() {
    if (parts_.empty()) return;
    Json content = as_content(std::exchange(parts_, Json::array()));
    if (assistant_) {
      messages_.add_assistant_text(std::move(content));
    } else {
      messages_.add("user", std::move(content));
    }
  }

  Fields& own_;
  MediaParts& media_;
  MessageList messages_;
  Json parts_;
  bool assistant_ = false;
};

}  // namespace

Json read_turns(Fields& own, const config::LimitOptions& limits, bool answered, MediaParts& media) {
  BlockReader reader(own, media);
  if (Json* system = own.find("system")) {
    auto text = read_content(*system, "system", kBlockTextTypes, ContentKind::text, media);
    if (text.ok()) {
      reader.add_system(*std::move(text));
    } else {
      own.fail(text.status());
    }
  }
  Json* messages = own.find("messages");
  if (messages == nullptr) {
    own.fail(missing_field("messages"));
    return {};
  }
  if (!messages->is_array() || messages->empty() ||
      messages->size() > static_cast<std::size_t>(limits.max_messages)) {
    own.fail("messages",
             "must be a list of 1 to " + std::to_string(limits.max_messages) + " messages, got " +
                 (messages->is_array() ? std::to_string(messages->size()) : excerpt(*messages)),
             messages->is_array() ? "out_of_range" : "invalid_type");
    return {};
  }
  for (std::size_t i = 0; i < messages->size() && own.ok(); ++i) {
    own.fail(reader.read((*messages)[i], "messages." + std::to_string(i)));
  }
  if (answered && own.ok() && json::is(json::member(messages->back(), "role"), "assistant")) {
    own.fail(not_offered(
        "messages." + std::to_string(messages->size() - 1) + ".role",
        "is assistant, but an answer cannot be begun for the model: the last message must be the user's"));
  }
  return reader.take();
}

}  // namespace troupe::http
