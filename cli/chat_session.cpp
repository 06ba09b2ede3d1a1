#include "cli/chat_session.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "cli/command_line.h"
#include "cli/terminal.h"

namespace troupe::cli {
namespace {

using ChatClock = std::chrono::steady_clock;
using SessionJson = nlohmann::ordered_json;

double seconds_between(ChatClock::time_point from, ChatClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// A line about the answer, faint where that is possible. Not part of the answer, so not on the standard
/// output.
void print_note(const std::string& text) {
  const bool faint = may_style(STDERR_FILENO);
  std::fprintf(stderr, "%s[%s]%s\n", faint ? "\x1b[2m" : "", printable(text).c_str(),
               faint ? "\x1b[22m" : "");
}

const std::string* text_of(const SessionJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

}  // namespace

void ChatSession::set_system(const std::string& text) {
  std::erase_if(chat_.messages, [](const ChatMessage& message) { return message.role == "system"; });
  if (!text.empty()) chat_.messages.insert(chat_.messages.begin(), {"system", text});
}

void ChatSession::clear() {
  std::erase_if(chat_.messages, [](const ChatMessage& message) { return message.role != "system"; });
}

void ChatSession::set_temperature(std::optional<double> value) {
  parameters_.erase("temperature");
  if (value) parameters_["temperature"] = *value;
}

std::optional<double> ChatSession::temperature() const {
  const auto found = parameters_.find("temperature");
  return found == parameters_.end() ? std::nullopt : std::optional(found->get<double>());
}

Status ChatSession::regenerate() {
  std::vector<ChatMessage>& messages = chat_.messages;
  const std::size_t count = messages.size();
  if (count < 2 || messages[count - 1].role != "assistant" || messages[count - 2].role != "user")
    return invalid("there is no answer yet that could be made again");
  const std::vector<ChatMessage> before = messages;
  messages.resize(count - 2);
  Status status = ask(before[count - 2].content);
  if (!status.ok()) messages = before;
  return status;
}

std::string ChatSession::request_body(const std::string& question) const {
  SessionJson body = parameters_;
  body["model"] = chat_.model;
  body["stream"] = true;
  if (show_rate_) body["stream_options"] = {{"include_usage", true}};
  body["messages"] = SessionJson::array();
  for (const ChatMessage& past : chat_.messages) {
    body["messages"].push_back({{"role", past.role}, {"content", past.content}});
  }
  body["messages"].push_back({{"role", "user"}, {"content", question}});
  return body.dump(-1, ' ', false, SessionJson::error_handler_t::replace);
}

Status ChatSession::ask(const std::string& question) {
  ChatAnswer answer;
  const InterruptGuard interrupts;
  const EchoGuard silence;
  const auto started = ChatClock::now();
  const auto response = client_.stream(
      "/v1/chat/completions", request_body(question),
      [&](std::string_view data) { return take_event(data, answer) && !InterruptGuard::interrupted(); });
  if (!answer.text.empty() || answer.thoughts_shown) std::printf("\n"), std::fflush(stdout);
  const bool failed = !response.ok() && response.status().code != Code::cancelled;
  if (failed || !answer.error.empty()) {
    if (!answer.text.empty()) print_note("cut: the answer did not arrive in full");
    return failed ? response.status() : failure(Code::unavailable, answer.error);
  }
  if (response.ok() && response->status != 200) {
    const bool unknown_key = response->status == 401;
    return failure(Code::unavailable, http::error_message(*response) +
                                          (unknown_key ? "; --api-key and FD_API_KEY name one" : ""));
  }
  const bool stopped = InterruptGuard::interrupted() && answer.finish_reason.empty();
  print_notes(answer, stopped, started);
  chat_.messages.push_back({"user", question});
  chat_.messages.push_back({"assistant", answer.text});
  return {};
}

void ChatSession::print_notes(const ChatAnswer& answer, bool stopped, ChatClock::time_point started) const {
  if (stopped) print_note("stopped");
  if (answer.finish_reason == "length") print_note("cut: the limit of tokens was reached");
  if (!show_rate_ || !answer.first_at) return;
  char line[128];
  const double wait = seconds_between(started, *answer.first_at);
  const double streamed = seconds_between(*answer.first_at, answer.last_at);
  if (answer.tokens > 1 && streamed > 0) {
    std::snprintf(line, sizeof line, "%d tokens, the first after %.2f s, then %.1f tokens/s", answer.tokens,
                  wait, (answer.tokens - 1) / streamed);
  } else {
    std::snprintf(line, sizeof line, "the first token after %.2f s", wait);
  }
  print_note(line);
}

/// False ends the stream: an error event, or one that is not understood.
bool ChatSession::take_event(std::string_view data, ChatAnswer& answer) {
  const SessionJson event = SessionJson::parse(data, nullptr, false);
  if (!event.is_object()) return answer.error = "the server sent an event that is not JSON", false;
  if (event.contains("error")) {
    answer.error = http::error_message({.status = 500, .headers = {}, .body = std::string(data)});
    return false;
  }
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    const auto count = usage->find("completion_tokens");
    if (count != usage->end() && count->is_number_integer()) answer.tokens = count->get<int>();
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty())
    return true;  // the usage, at the end
  const SessionJson& choice = choices->front();
  if (!choice.is_object()) return true;
  if (const std::string* reason = text_of(choice, "finish_reason")) answer.finish_reason = *reason;
  const auto delta = choice.find("delta");
  if (delta != choice.end() && delta->is_object()) take_delta(*delta, answer);
  return true;
}

/// Thoughts are shown to a person only, above the answer; elsewhere only the answer is written.
void ChatSession::take_delta(const SessionJson& delta, ChatAnswer& answer) {
  const std::string* thoughts = text_of(delta, "reasoning_content");
  const std::string* text = text_of(delta, "content");
  const bool has_thoughts = thoughts != nullptr && !thoughts->empty();
  const bool has_text = text != nullptr && !text->empty();
  if (!has_thoughts && !has_text) return;
  answer.last_at = ChatClock::now();
  if (!answer.first_at) answer.first_at = answer.last_at;
  if (has_thoughts && ::isatty(STDOUT_FILENO) == 1) {
    static const bool faint = may_style(STDOUT_FILENO);
    std::printf("%s%s%s", faint ? "\x1b[2m" : "", printable(*thoughts).c_str(), faint ? "\x1b[22m" : "");
    answer.thoughts_shown = true;
  }
  if (has_text) {
    if (std::exchange(answer.thoughts_shown, false)) std::printf("\n\n");
    answer.text += *text;
    std::fputs(printable(*text).c_str(), stdout);
  }
  std::fflush(stdout);
}

}  // namespace troupe::cli
