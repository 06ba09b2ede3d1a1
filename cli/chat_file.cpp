#include "cli/chat_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;
using ChatJson = nlohmann::ordered_json;

constexpr std::uintmax_t kLargestChatFile = 64 << 20;

Status not_a_chat(const std::string& path, const std::string& why) {
  return invalid(path + " is not a saved chat: " + why);
}

const std::string* text_member(const ChatJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

}  // namespace

Result<ChatFile> load_chat(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error))
    return not_a_chat(path, "it is no regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return failure(Code::not_found, "cannot read " + path + ": " + std::strerror(errno));
  if (fs::file_size(path, error) > kLargestChatFile) return not_a_chat(path, "it is larger than 64 MiB");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const ChatJson document = ChatJson::parse(text, nullptr, false);
  const auto messages = document.is_object() ? document.find("messages") : document.end();
  if (!document.is_object() || messages == document.end() || !messages->is_array()) {
    return not_a_chat(path, "it is no JSON object with a list \"messages\"");
  }
  ChatFile chat;
  if (const std::string* model = text_member(document, "model")) chat.model = *model;
  for (const ChatJson& message : *messages) {
    const std::string* role = text_member(message, "role");
    const std::string* content = text_member(message, "content");
    const bool known = role != nullptr && (*role == "system" || *role == "user" || *role == "assistant");
    if (!known || content == nullptr) {
      return not_a_chat(path, "messages[" + std::to_string(chat.messages.size()) +
                                  "] needs a role (system, user or assistant) and a content that is text");
    }
    chat.messages.push_back({*role, *content});
  }
  return chat;
}

Status save_chat(const std::string& path, const ChatFile& chat) {
  std::error_code error;
  if (fs::exists(path, error)) {
    if (const auto older = load_chat(path); !older.ok()) {
      return invalid(older.status().message + "; it is left as it was");
    }
  }
  ChatJson document = {{"model", chat.model}, {"messages", ChatJson::array()}};
  for (const ChatMessage& message : chat.messages) {
    document["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  const std::string part = path + ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << document.dump(2, ' ', false, ChatJson::error_handler_t::replace) << '\n';
  file.close();
  if (!file) {
    const std::string reason = std::strerror(errno);
    fs::remove(part, error);
    return failure(Code::unavailable, "cannot write " + part + ": " + reason);
  }
  fs::rename(part, path, error);
  if (error)
    return failure(Code::unavailable, "cannot rename " + part + " to " + path + ": " + error.message());
  return {};
}

}  // namespace troupe::cli
