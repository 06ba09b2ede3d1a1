#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/chat_session.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/server_flags.h"
#include "cli/terminal.h"
#include "http/client/client.h"

namespace troupe::cli {

int chat_main(int argc, char** argv) {
  const Synopsis synopsis{"chat", "talks with the model of a running server",
                          "troupe chat [QUESTION] [OPTION…]",
                          "  troupe chat\n"
                          "        a conversation; /quit ends it\n"
                          "  troupe chat \"Can you tell me the capital of France?\"\n"
                          "        one question, one answer\n"
                          "  troupe chat \"Sum this up:\" < notes.txt\n"
                          "        the standard input is read behind the words, unless it is a terminal\n"
                          "  troupe chat --port 8190 --system \"Answer in one word.\" --temperature 0\n"
                          "  troupe chat --url https://gpu7:8443 --ca-file ca.pem\n"};
  ServerFlags flags;
  http::ClientOptions server;
  server.interrupted = InterruptGuard::interrupted;
  std::string model = "default";
  std::string system;
  double temperature = -1;
  int max_tokens = 0;
  bool show_rate = false;
  std::vector<std::string> keys;
  std::vector<config::Field> fields = {
      {.name = "api-key",
       .slot = &keys,
       .help = "key to send",
       .env = "FD_API_KEY",
       .when_unset = "none",
       .secret = true,
       .one_word = true},
      {.name = "model", .slot = &model, .help = "model to ask"},
      {.name = "system", .slot = &system, .help = "system prompt"},
      {.name = "temperature",
       .slot = &temperature,
       .help = "0 always picks the most likely token",
       .min = kLeastTemperature,
       .max = kMostTemperature,
       .when_unset = "the server's"},
      {.name = "max-tokens",
       .slot = &max_tokens,
       .help = "longest answer",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 30,
       .when_unset = "the server's"},
      {.name = "show-rate", .slot = &show_rate, .help = "print tokens and tokens/s after each answer"},
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

  nlohmann::ordered_json parameters = nlohmann::ordered_json::object();
  if (temperature >= 0) parameters["temperature"] = temperature;
  if (max_tokens > 0) parameters["max_tokens"] = max_tokens;

  std::string question;
  for (const std::string& word : words) question += (question.empty() ? "" : " ") + word;
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (!terminal) {
    const auto piped = read_standard_input();
    if (!piped.ok()) return fail(synopsis, piped.status());
    if (!piped->empty()) question += (question.empty() ? "" : "\n") + *piped;
    if (question.empty()) {
      return fail(synopsis,
                  invalid("there is no question: no words are given and the standard input is empty"));
    }
  }
  http::Client client(server);
  const auto health = client.request("GET", "/health/live");
  if (!health.ok()) {
    const bool none = health.status().code == Code::unavailable;
    complain(synopsis, health.status().message + (none ? "; `troupe serve` starts one" : ""));
    return 1;
  }
  ChatSession session(std::move(client), model, parameters, show_rate);
  session.set_system(system);
  if (question.empty()) return converse(synopsis, session);
  const Status status = session.ask(question);
  return status.ok() ? 0 : fail(synopsis, status);
}

}  // namespace troupe::cli
