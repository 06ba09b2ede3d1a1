#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/logfmt.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/instance.h"
#include "cli/log_merge.h"

namespace troupe::cli {
namespace {

/// Lines of several actors that wait to be printed in the order of their times. Equal times keep the order of arrival.
class PendingLines {
 public:
  /// A line without a time gets that of the newest line.
  void add(const std::string& line) {
    if (line.starts_with("20")) newest_ = line.substr(0, line.find(' '));
    lines_.emplace(newest_, line);
  }

  /// Prints the lines that are older than `cutoff`, a time as lines begin with it.
  void print_before(const std::string& cutoff) {
    const auto end = lines_.lower_bound(cutoff);
    for (auto line = lines_.begin(); line != end; ++line) std::cout << printable(line->second) << '\n';
    lines_.erase(lines_.begin(), end);
    std::cout.flush();
  }

 private:
  std::multimap<std::string, std::string> lines_;
  std::string newest_;
};

/// Collects what is appended to the actor's file, also after rotations.
class Follower {
 public:
  Follower(std::string path, std::string request, PendingLines& lines)
      : path_(std::move(path)), request_(std::move(request)), lines_(lines) {}

  /// Skips what the file holds already.
  void skip_to_end() {
    reopen();
    file_.seekg(0, std::ios::end);
  }

  void poll() {
    read();
    struct stat now {};
    if (::stat(path_.c_str(), &now) != 0 || (now.st_ino == inode_ && file_.is_open())) return;
    read();  // lines that were written before the file was renamed
    reopen();
    read();
  }

 private:
  void reopen() {
    struct stat now {};
    file_.close();
    file_.clear();
    if (::stat(path_.c_str(), &now) != 0) return;
    file_.open(path_);
    inode_ = now.st_ino;
    partial_.clear();
  }

  void read() {
    if (!file_.is_open()) return;
    file_.clear();
    std::string line;
    while (std::getline(file_, line)) {
      partial_ += line;
      if (file_.eof()) break;  // the line's end has not been written yet
      if (request_.empty() || is_about_request(partial_, request_)) lines_.add(partial_);
      partial_.clear();
    }
  }

  const std::string path_;
  const std::string request_;
  PendingLines& lines_;
  std::ifstream file_;
  std::string partial_;
  ino_t inode_ = 0;
};

constexpr std::size_t kLastLines = 10;  // of each actor
// A line is in its file that soon after its event; lines of several actors are put in order within it.
constexpr auto kSettleTime = std::chrono::milliseconds(300);

}  // namespace

int logs_main(int argc, char** argv) {
  const Synopsis synopsis{"logs", "the event logs of a server's actors", "troupe logs [ACTOR…] [OPTION…]",
                          "  troupe logs\n"
                          "        the actors that have a log\n"
                          "  troupe logs scheduler -f\n"
                          "        its last lines, and those to come\n"
                          "  troupe logs --request chatcmpl-7\n"
                          "        what every actor says of that request, in time order\n"
                          "  troupe logs gateway scheduler --log-dir /var/log/troupe\n"
                          "        two actors' lines, merged\n"};
  LogOptions options;
  options.dir.clear();
  std::optional<int> port;
  std::string runtime_dir;
  bool follow = false;
  std::string request;
  const std::vector<config::Field> fields = {
      {.name = "follow", .slot = &follow, .help = "keep printing new lines", .aliases = {"f"}},
      {.name = "request",
       .slot = &request,
       .help = "only lines about the request with this x-request-id, or whose answer has this id"},
      {.name = "log-dir",
       .slot = &options.dir,
       .help = "where the logs are",
       .env = "FD_LOG_DIR",
       .when_unset = "that of the running server, or else log"},
      {.name = "actor-log-dir", .slot = &options.actor_dirs, .help = "the server's --actor-log-dir"},
      {.name = "port", .slot = &port, .help = "of the server whose logs are meant", .min = 1, .max = 65535,
       .when_unset = "the one that runs"},
      runtime_dir_field(runtime_dir),
  };
  std::vector<std::string> actors;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, actors)) return *code;

  if (options.dir.empty() || port) {
    const auto server = choose_instance(directory_or_default(runtime_dir), port);
    if (!server.ok()) return fail(synopsis, server.status());
    if (options.dir.empty()) options.dir = *server ? (*server)->log_dir : LogOptions{}.dir;
    if (*server && options.actor_dirs.empty()) options.actor_dirs = (*server)->actor_log_dirs;
  }
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

  if (follow && request.empty()) {
    std::vector<std::string> last;
    merge_logs(actors, options, [&](const std::string& line) {
      if (last.size() == kLastLines * actors.size()) last.erase(last.begin());
      last.push_back(line);
    });
    for (const std::string& line : last) std::cout << printable(line) << '\n';
  } else {
    bool any = request.empty();
    merge_logs(actors, options, [&](const std::string& line) {
      if (!request.empty() && !is_about_request(line, request)) return;
      any = true;
      std::cout << printable(line) << '\n';
    });
    if (!any) {
      complain(synopsis, "no line under " + options.dir + " is about a request \"" + request + "\"");
      if (!follow) return 1;
    }
  }
  std::cout.flush();
  if (!follow) return 0;
  PendingLines lines;
  std::vector<Follower> followers;
  followers.reserve(actors.size());
  for (const std::string& actor : actors)
    followers.emplace_back(log_path(actor, options), request, lines).skip_to_end();
  while (std::cout.good()) {
    std::string cutoff;
    append_time(cutoff, std::chrono::system_clock::now() - kSettleTime);
    for (Follower& follower : followers) follower.poll();
    lines.print_before(cutoff);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return 0;
}

}  // namespace troupe::cli
