#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/running_server.h"
#include "cli/status_table.h"
#include "cli/terminal.h"

namespace troupe::cli {

int status_main(int argc, char** argv) {
  const Synopsis synopsis{"status", "what a running server is doing", "troupe status [--port N] [--json]",
                          "  troupe status\n"
                          "  troupe status --port 8180 --json\n"};
  WhichServer which;
  bool json = false;
  const std::vector<config::Field> fields = {
      port_field(which),
      {.name = "json", .slot = &json, .help = "print JSON instead of a table"},
      runtime_dir_field(which),
  };
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (!words.empty()) return fail(synopsis, invalid("unexpected \"" + words.front() + "\""));

  const auto server = find_running_server(which);
  if (!server.ok()) return fail(synopsis, server.status()), 1;
  if (json) {
    std::printf("%s\n", server->status.c_str());
    return 0;
  }
  const Result<std::string> text = status_table(server->status);
  if (!text.ok()) return fail(synopsis, text.status());
  const std::size_t facts =
      std::min(text->find("\n\n"), text->size());  // the tables behind them stay as they are
  std::fputs((wrapped_for(STDOUT_FILENO, text->substr(0, facts)) + text->substr(facts)).c_str(), stdout);
  return 0;
}

}  // namespace troupe::cli
