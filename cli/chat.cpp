#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/server_flags.h"
#include "http/client.h"

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // it is set by a signal handler

/// While one exists, Ctrl-C ends the streaming answer and not the program.
class StopOnInterrupt {
 public:
  StopOnInterrupt() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    ::sigaction(SIGINT, &action, &before_);
  }
  ~StopOnInterrupt() { ::sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

/// One conversation with the model.
class Chat {
 public:
  Chat(http::Client client, std::string model, Json extra)
      : client_(std::move(client)), model_(std::move(model)), extra_(std::move(extra)) {}

  void set_system(const std::string& text) { system_ = text; }
  void forget() { messages_.clear(); }

  /// Sends the question and prints the answer as it arrives. Both are added to the history unless it failed.
  Status ask(const std::string& question) {
    Json body = extra_;
    body["model"] = model_;
    body["stream"] = true;
    body["messages"] = Json::array();
    if (!system_.empty()) body["messages"].push_back(message("system", system_));
    for (const Json& past : messages_) body["messages"].push_back(past);
    body["messages"].push_back(message("user", question));

    std::string answer;
    std::string complaint;
    const StopOnInterrupt guard;
    const auto response = client_.stream(
        "/v1/chat/completions", body.dump(-1, ' ', false, Json::error_handler_t::replace),
        [&](std::string_view data) { return take_event(data, answer, complaint) && !interrupted; });
    if (!answer.empty() || std::exchange(thoughts_shown_, false)) std::printf("\n");
    if (!response.ok() && response.status().code != Code::cancelled) return response.status();
    if (response.ok() && response->status != 200) {
      return failure(Code::unavailable, http::error_message(*response));
    }
    if (!complaint.empty()) return failure(Code::unavailable, complaint);
    messages_.push_back(message("user", question));
    messages_.push_back(message("assistant", answer));
    return {};
  }

 private:
  static Json message(const char* role, const std::string& content) {
    return {{"role", role}, {"content", content}};
  }

  /// Shows thoughts to a person: faint, above the answer. Elsewhere only the answer is written.
  void show_thoughts(const Json& delta) {
    const auto thoughts = delta.find("reasoning_content");
    if (thoughts == delta.end() || !thoughts->is_string() || ::isatty(STDOUT_FILENO) != 1) return;
    std::printf("\x1b[2m%s\x1b[22m", printable(thoughts->get_ref<const std::string&>()).c_str());
    std::fflush(stdout);
    thoughts_shown_ = true;
  }

  /// False for an error event; `complaint` is its message.
  bool take_event(std::string_view data, std::string& answer, std::string& complaint) {
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) return complaint = "the server sent an event that is not JSON", false;
    if (event.contains("error")) {
      complaint = http::error_message({.status = 500, .headers = {}, .body = std::string(data)});
      return false;
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty())
      return true;  // the usage, at the end
    const Json& choice = choices->front();
    if (!choice.is_object() || !choice.contains("delta") || !choice["delta"].is_object()) return true;
    show_thoughts(choice["delta"]);
    const auto content = choice["delta"].find("content");
    if (content == choice["delta"].end() || !content->is_string()) return true;
    const auto& text = content->get_ref<const std::string&>();
    if (!text.empty() && std::exchange(thoughts_shown_, false)) std::printf("\n\n");
    answer += text;
    std::fputs(printable(text).c_str(), stdout);
    std::fflush(stdout);
    return true;
  }

  const http::Client client_;
  const std::string model_;
  const Json extra_;
  std::string system_;
  std::vector<Json> messages_;
  bool thoughts_shown_ = false;  ///< and nothing of the answer behind them yet
};

constexpr const char* kHelp =
    "/exit ends, /clear forgets the conversation, /system TEXT sets the system prompt, Ctrl-C stops an "
    "answer\n";

/// Reads questions until the end of the input or /exit.
int converse(const Synopsis& synopsis, Chat& chat) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) std::printf("%s", kHelp);
  int code = 0;
  std::string line;
  while (true) {
    if (terminal) std::printf("> "), std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/exit" || line == "/quit") return code;
    if (line == "/clear") {
      chat.forget();
    } else if (line == "/system" || line.starts_with("/system ")) {
      chat.set_system(line.size() > 8 ? line.substr(8) : "");
    } else if (line.starts_with("/") && line.find(' ') == std::string::npos) {
      std::printf("unknown command %s\n%s", printable(line).c_str(), kHelp);
    } else if (const Status status = chat.ask(line); !status.ok()) {
      complain(synopsis, status.message);
      code = 1;
      if (!terminal) return code;
    }
  }
  if (terminal) std::printf("\n");
  return code;
}

}  // namespace

int chat_main(int argc, char** argv) {
  const Synopsis synopsis{"chat", "talks with the model of a running server",
                          "troupe chat [QUESTION] [OPTION…]",
                          "  troupe chat\n"
                          "        a conversation; /exit ends it\n"
                          "  troupe chat \"Can you tell me the capital of France?\"\n"
                          "        one question, one answer\n"
                          "  troupe chat --port 8190 --system \"Answer in one word.\" --temperature 0\n"
                          "  troupe chat --url https://gpu7:8443 --ca-file ca.pem\n"};
  ServerFlags flags;
  http::ClientOptions server;
  server.interrupted = [] { return interrupted.load(); };
  std::string model = "default";
  std::string system;
  double temperature = -1;
  int max_tokens = 0;
  std::vector<std::string> keys;
  std::vector<config::Field> fields = {
      {.name = "api-key",
       .slot = &keys,
       .help = "key to send",
       .env = "FD_API_KEY",
       .when_unset = "none",
       .secret = true},
      {.name = "model", .slot = &model, .help = "model to ask"},
      {.name = "system", .slot = &system, .help = "system prompt"},
      {.name = "temperature",
       .slot = &temperature,
       .help = "0 always picks the most likely token",
       .min = 0,
       .max = 2,
       .when_unset = "the server's"},
      {.name = "max-tokens",
       .slot = &max_tokens,
       .help = "longest answer",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 30,
       .when_unset = "the server's"},
  };
  const std::vector<config::Field> of_server = server_fields(flags);
  fields.insert(fields.begin(), of_server.begin(), of_server.end());
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  const auto chosen = choose_server(flags);
  if (!chosen.ok()) return fail(synopsis, chosen.status());
  server.host = chosen->host;
  server.port = chosen->port;
  server.tls = chosen->tls;
  if (!keys.empty()) server.api_key = keys.front();

  Json extra = Json::object();
  if (temperature >= 0) extra["temperature"] = temperature;
  if (max_tokens > 0) extra["max_tokens"] = max_tokens;
  Chat chat(http::Client(server), model, extra);
  chat.set_system(system);
  const auto health = http::Client(server).request("GET", "/health/live");
  if (!health.ok()) {
    const bool none = health.status().code == Code::unavailable;
    complain(synopsis, health.status().message + (none ? "; `troupe serve` starts one" : ""));
    return 1;
  }
  if (words.empty()) return converse(synopsis, chat);
  std::string question;
  for (const std::string& word : words) question += (question.empty() ? "" : " ") + word;
  const Status status = chat.ask(question);
  return status.ok() ? 0 : fail(synopsis, status);
}

}  // namespace troupe::cli
