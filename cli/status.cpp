#include <cstdio>

#include "actors/supervisor/status_page.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/instance.h"
#include "cli/status_table.h"

namespace troupe::cli {

int status_main(int argc, char** argv) {
  const Synopsis synopsis{"status", "what a running server is doing", "troupe status [--port N] [--json]",
                          "  troupe status\n"
                          "  troupe status --port 8180 --json\n"};
  std::optional<int> port;
  bool json = false;
  std::string runtime_dir;
  const std::vector<config::Field> fields = {
      {.name = "port",
       .slot = &port,
       .help = "HTTP port of the server",
       .min = 1,
       .max = 65535,
       .when_unset = "the one that runs"},
      {.name = "json", .slot = &json, .help = "print JSON instead of a table"},
      runtime_dir_field(runtime_dir),
  };
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (!words.empty()) return fail(synopsis, invalid("unexpected \"" + words.front() + "\""));
  runtime_dir = directory_or_default(runtime_dir);
  const auto chosen = choose_port(runtime_dir, port);
  if (!chosen.ok()) return fail(synopsis, chosen.status()), 1;
  port = *chosen;

  const Result<std::string> answer = supervisor::query_status(runtime_dir, port);
  if (!answer.ok()) return fail(synopsis, answer.status()), 1;
  if (json) {
    std::printf("%s\n", answer->c_str());
    return 0;
  }
  const Result<std::string> text = status_table(*answer);
  if (!text.ok()) return fail(synopsis, text.status());
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace troupe::cli
