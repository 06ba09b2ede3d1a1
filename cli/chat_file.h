#pragma once
// A saved conversation: {"model": …, "messages": [{"role": …, "content": …}, …]}, the form that a request
// has.
#include <string>
#include <vector>

#include "base/status.h"

namespace troupe::cli {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;

  bool operator==(const ChatMessage&) const = default;
};

struct ChatFile {
  std::string model;
  std::vector<ChatMessage> messages;
};

/// invalid_argument, with the path and what is wrong, if the file is not a saved chat; not_found if it cannot
/// be read.
Result<ChatFile> load_chat(const std::string& path);

/// Writes the chat beside `path` and renames it, so that an older one is whole or replaced. A file there that
/// is not a saved chat is kept: invalid_argument.
Status save_chat(const std::string& path, const ChatFile& chat);

}  // namespace troupe::cli
