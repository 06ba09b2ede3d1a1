#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <iostream>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/log_follow.h"
#include "cli/log_merge.h"
#include "cli/running_server.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kLastLines = 10;  // of each actor, before those that are followed

/// False if `descriptor` is a pipe whose reader has gone: without a line to write that would not be noticed.
bool has_reader(int descriptor) {
  pollfd pipe{descriptor, 0, 0};
  return ::poll(&pipe, 1, 0) != 1 || (pipe.revents & POLLERR) == 0;
}

void print_line(const std::string& line) { std::cout << printable(line) << '\n'; }

/// Sets the directories: those that were named, else those of the running server, else "log" of a server that
/// has ended.
Status find_logs(const WhichServer& which, LogOptions& options) {
  if (!options.dir.empty() || !options.actor_dirs.empty()) {
    if (options.dir.empty()) options.dir = LogOptions().dir;
    return {};
  }
  const auto server = find_running_server(which);
  if (server.ok()) {
    options = server->logs;
    return {};
  }
  if (which.port || server.status().code != Code::not_found) {
    return failure(server.status().code, server.status().message + "; --log-dir reads logs without a server");
  }
  options.dir = LogOptions().dir;
  return {};
}

}  // namespace

int logs_main(int argc, char** argv) {
  const Synopsis synopsis{"logs", "the event logs of a server's actors", "troupe logs [ACTOR…] [OPTION…]",
                          "  troupe logs\n"
                          "        the actors of the running server that have a log\n"
                          "  troupe logs scheduler -f\n"
                          "        its last lines, and those to come\n"
                          "  troupe logs --request chatcmpl-7\n"
                          "        what every actor says of that request, in time order\n"
                          "  troupe logs gateway scheduler --log-dir /var/log/troupe\n"
                          "        two actors' lines, merged, also of a server that has ended\n"};
  WhichServer which;
  LogOptions options;
  options.dir.clear();
  bool follow = false;
  std::string request;
  const std::vector<config::Field> fields = {
      {.name = "follow", .slot = &follow, .help = "keep printing new lines", .aliases = {"f"}},
      {.name = "request",
       .slot = &request,
       .help = "only lines about the request with this x-request-id, or whose answer has this id"},
      port_field(which),
      {.name = "log-dir",
       .slot = &options.dir,
       .help = "the server's --log-dir",
       .env = "FD_LOG_DIR",
       .when_unset = "that of the running server, else log"},
      {.name = "actor-log-dir",
       .slot = &options.actor_dirs,
       .help = "the server's --actor-log-dir",
       .one_word = true},
      runtime_dir_field(which),
  };
  std::vector<std::string> actors;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, actors)) return *code;
  if (const Status status = find_logs(which, options); !status.ok()) return fail(synopsis, status), 1;

  const std::vector<std::string> known = list_actors(options);
  if (known.empty()) {
    complain(synopsis, "no logs under " + options.dir + "; --log-dir says where the server writes them");
    return 1;
  }
  for (const std::string& actor : actors) {
    if (std::ranges::count(known, actor) > 0) continue;
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    complain(synopsis, "no log of \"" + actor + "\" under " + options.dir + ", only of " + names);
    return 1;
  }
  if (actors.empty() && request.empty() && !follow) {
    for (const std::string& name : known) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (actors.empty()) actors = known;

  const auto is_wanted = [&](const std::string& line) {
    return request.empty() || is_about_request(line, request);
  };
  const std::size_t most = follow && request.empty() ? kLastLines * actors.size() : 0;
  bool any = false;
  std::deque<std::string> last;  // of those before the followed ones; everything is printed where `most` is 0
  const auto positions = merge_logs(actors, options, [&](const std::string& line) {
    if (!is_wanted(line)) return;
    any = true;
    if (most == 0) return print_line(line);
    if (last.size() == most) last.pop_front();
    last.push_back(line);
  });
  for (const std::string& line : last) print_line(line);
  if (!any && !request.empty()) {
    const std::string found = "no line under " + options.dir + " is about a request \"" + request + "\"";
    complain(synopsis, follow ? found + " yet; waiting for one" : found);
    if (!follow) return 1;
  }
  std::cout.flush();
  if (!follow) return 0;
  follow_logs(
      actors, options, positions,
      [&](const std::string& line) {
        if (is_wanted(line)) print_line(line);
      },
      [] { return std::cout.flush().good() && has_reader(STDOUT_FILENO); });
  return 0;
}

}  // namespace troupe::cli
