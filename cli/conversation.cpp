#include "cli/conversation.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "config/nearest.h"

namespace troupe::cli {
namespace {

constexpr const char* kChatHelp =
    "  /help          this list\n"
    "  /regenerate    asks the last question again; the new answer takes the place of the old one\n"
    "  /clear         forgets the conversation, not the system prompt\n"
    "  /system TEXT   sets the system prompt; without TEXT removes it\n"
    "  /model NAME    asks another model; without NAME shows the present one\n"
    "  /temperature T sets the temperature, 0 to 2; without T shows it, with default the server's is taken\n"
    "  /save FILE     writes the conversation as JSON\n"
    "  /load FILE     goes on with a saved conversation\n"
    "  /quit          ends, like Ctrl-D\n"
    "A message that begins with a slash has a space before it: \" /etc/hosts is a file\".\n"
    "Ctrl-C stops an answer or drops the line being typed. Several lines pasted at once are one message.\n";

void say_line(const std::string& text) { std::printf("%s\n", printable(text).c_str()); }

Status load_into(ChatSession& session, const std::string& path) {
  auto chat = load_chat(path);
  if (!chat.ok()) return chat.status();
  if (chat->model.empty()) chat->model = session.chat().model;
  const std::size_t count = chat->messages.size();
  session.set_chat(std::move(*chat));
  say_line("loaded " + path + ": " + std::to_string(count) + (count == 1 ? " message" : " messages"));
  return {};
}

Status set_temperature(ChatSession& session, const std::string& text) {
  if (text.empty()) {
    const auto now = session.temperature();
    char line[64];
    if (now) std::snprintf(line, sizeof line, "%g", *now);
    return say_line(now ? line : "the server's"), Status{};
  }
  if (text == "default") return session.set_temperature(std::nullopt), Status{};
  double value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= kLeastTemperature && value <= kMostTemperature)) {
    return invalid("/temperature: got \"" + text.substr(0, 40) +
                   "\", expected a number from 0 to 2, or default");
  }
  return session.set_temperature(value), Status{};
}

/// Runs "/name rest". A failed command changes nothing.
Status run_command(ChatSession& session, std::string_view name, const std::string& rest) {
  if (name == "/help") return std::printf("%s", kChatHelp), Status{};
  if (name == "/temperature") return set_temperature(session, rest);
  if ((name == "/regenerate" || name == "/clear") && !rest.empty())
    return invalid(std::string(name) + " takes nothing behind it, got \"" + rest.substr(0, 40) + "\"");
  if (name == "/regenerate") return session.regenerate();
  if (name == "/clear") return session.clear(), Status{};
  if (name == "/system") return session.set_system(rest), Status{};
  if (name == "/model") {
    if (rest.empty()) return say_line(session.chat().model), Status{};
    return session.set_model(rest), Status{};
  }
  if (rest.empty()) return invalid(std::string(name) + " needs a file's name");
  if (name == "/load") return load_into(session, rest);
  Status saved = save_chat(rest, session.chat());
  if (saved.ok()) say_line("saved to " + rest);
  return saved;
}

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

}  // namespace

int converse(const Synopsis& synopsis, ChatSession& session) {
  static const std::vector<std::string_view> commands = {"/help",  "/regenerate",  "/clear", "/system",
                                                         "/model", "/temperature", "/save",  "/load",
                                                         "/quit",  "/exit"};
  std::printf("/help lists the commands, /quit ends\n");
  std::fflush(stdout);
  int code = 0;
  const InterruptGuard between_waits;  // Ctrl-C just after an answer does not end the chat
  while (true) {
    const EditedLine line = edit_line("> ");
    if (line.end == LineEnd::closed) break;
    const std::string message = trimmed(line.text);
    if (message.empty()) continue;
    const std::string name = message.substr(0, message.find_first_of(" \t\n"));
    const bool is_command = line.text.starts_with('/');  // with a blank before the slash it is a message
    if (is_command && (name == "/quit" || name == "/exit")) return code;
    Status status;
    if (is_command && std::ranges::find(commands, name) != commands.end()) {
      status = run_command(session, name, trimmed(std::string_view(message).substr(name.size())));
      if (!status.ok() && status.code != Code::invalid_argument && name == "/regenerate") code = 1;
    } else if (is_command) {
      status = invalid("there is no command " + name.substr(0, 40) + config::did_you_mean(name, commands) +
                       " (/help lists them; a message that begins with a slash has a space before it)");
    } else {
      status = session.ask(message);
      if (!status.ok()) code = 1;
    }
    std::fflush(stdout);
    if (!status.ok()) complain(synopsis, status.message);
  }
  std::printf("\n");
  return code;
}

Result<std::string> read_standard_input() {
  constexpr std::size_t kLargest = 16 << 20;
  std::string text;
  std::vector<char> piece(1 << 16);
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EBADF) break;  // closed: no question there
    if (count < 0) {
      return failure(Code::unavailable,
                     std::string("cannot read the standard input: ") + std::strerror(errno));
    }
    if (count == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(count));
    if (text.size() > kLargest) {
      return failure(Code::too_large,
                     "the standard input is larger than 16 MiB; a question is at most that long");
    }
  }
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace troupe::cli
