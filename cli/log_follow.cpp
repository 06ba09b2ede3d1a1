#include "cli/log_follow.h"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/logfmt.h"

namespace troupe::cli {
namespace {

// A line is in its file that soon after its event; lines of several actors are put in order within it.
constexpr auto kSettleTime = std::chrono::milliseconds(300);
constexpr auto kPollInterval = std::chrono::milliseconds(100);

/// Inode of the file; 0 if there is none.
std::uint64_t inode_of(const std::string& path) {
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

/// Lines of several actors that wait for older ones. Equal times keep the order of arrival.
class PendingLines {
 public:
  /// A line without a time gets that of the newest line.
  void add(const std::string& line) {
    if (line.starts_with("20")) newest_ = line.substr(0, line.find(' '));
    lines_.emplace(newest_, line);
  }

  /// Gives away the lines that are older than `cutoff`, a time as lines begin with it.
  void take_before(const std::string& cutoff, const std::function<void(const std::string&)>& each) {
    const auto end = lines_.lower_bound(cutoff);
    for (auto line = lines_.begin(); line != end; ++line) each(line->second);
    lines_.erase(lines_.begin(), end);
  }

 private:
  std::multimap<std::string, std::string> lines_;
  std::string newest_;
};

/// Collects what is appended to the actor's file.
class LogFollower {
 public:
  LogFollower(const std::string& actor, const LogOptions& options, LogPosition from, PendingLines& lines)
      : path_(log_path(actor, options)), lines_(lines) {
    if (from.inode == 0) return;
    for (const std::string& file : log_files(actor, options)) {  // it may have been rotated since
      if (inode_of(file) == from.inode) open(file, from.offset);
    }
  }

  void poll() {
    read();
    const std::uint64_t named = inode_of(path_);
    if (named == 0 || (named == inode_ && file_.is_open())) return;
    read();  // lines that were written before the file was renamed
    open(path_, 0);
    read();
  }

 private:
  void open(const std::string& path, std::int64_t offset) {
    file_.close();
    file_.clear();
    partial_.clear();
    inode_ = inode_of(path);
    file_.open(path);
    file_.seekg(offset);
  }

  void read() {
    if (!file_.is_open()) return;
    file_.clear();
    std::string line;
    while (std::getline(file_, line)) {
      partial_ += line;
      if (file_.eof()) break;  // the line's end has not been written yet
      lines_.add(partial_);
      partial_.clear();
    }
  }

  const std::string path_;
  PendingLines& lines_;
  std::ifstream file_;
  std::string partial_;
  std::uint64_t inode_ = 0;
};

}  // namespace

void follow_logs(const std::vector<std::string>& actors, const LogOptions& options,
                 const std::vector<LogPosition>& positions,
                 const std::function<void(const std::string&)>& each, const std::function<bool()>& going_on) {
  PendingLines lines;
  std::vector<LogFollower> followers;
  followers.reserve(actors.size());
  for (std::size_t i = 0; i < actors.size(); ++i)
    followers.emplace_back(actors[i], options, positions[i], lines);
  while (going_on()) {
    std::string cutoff;
    append_time(cutoff, std::chrono::system_clock::now() - kSettleTime);
    for (LogFollower& follower : followers) follower.poll();
    lines.take_before(cutoff, each);
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace troupe::cli
