#include "cli/log_merge.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/log.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

/// The lines of one actor, over its rotated files.
class Lines {
 public:
  explicit Lines(std::vector<std::string> files) : files_(std::move(files)) { advance(); }

  bool ended() const { return ended_; }
  const std::string& line() const { return line_; }
  /// Times are compared as text: all have the same format. A line without a time keeps that of the line
  /// before it.
  const std::string& time() const { return time_; }

  LogPosition position() const { return position_; }

  void advance() {
    while (true) {
      // Without its end a line is still being written, or was cut by the end of its process: then a newer
      // file follows.
      if (file_.is_open() && std::getline(file_, line_) && (!file_.eof() || next_ < files_.size())) {
        position_.offset += static_cast<std::int64_t>(line_.size()) + 1;
        const std::size_t space = line_.find(' ');
        if (space != std::string::npos && line_.starts_with("20")) time_ = line_.substr(0, space);
        return;
      }
      if (next_ == files_.size()) {
        ended_ = true;
        return;
      }
      file_.close();
      file_.clear();
      struct stat opened {};
      file_.open(files_[next_]);
      const bool exists = ::stat(files_[next_++].c_str(), &opened) == 0;
      position_ = {exists ? opened.st_ino : 0, 0};
    }
  }

 private:
  std::vector<std::string> files_;
  std::size_t next_ = 0;
  std::ifstream file_;
  std::string line_;
  std::string time_;
  LogPosition position_;
  bool ended_ = false;
};

std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    out += text[i];
  }
  return out;
}

/// Index of the closing quote of the text whose opening quote is at `from`.
std::size_t closing_quote(std::string_view line, std::size_t from) {
  for (std::size_t i = from + 1; i < line.size(); ++i) {
    if (line[i] == '\\')
      ++i;
    else if (line[i] == '"')
      return i;
  }
  return line.size();
}

bool is_part_of(std::string_view id, std::string_view request) {
  if (!id.starts_with(request)) return false;
  return id.size() == request.size() ||
         std::string_view("-/:.#").find(id[request.size()]) != std::string_view::npos;
}

}  // namespace

std::optional<std::string> logfmt_value(std::string_view line, std::string_view key) {
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t sign = line.find_first_of("= ", at);
    if (sign == std::string_view::npos) return std::nullopt;
    if (line[sign] == ' ') {  // a word without a value: the time
      at = sign + 1;
      continue;
    }
    const std::size_t begin = sign + 1;
    const bool quoted = begin < line.size() && line[begin] == '"';
    const std::size_t end =
        quoted ? closing_quote(line, begin) : std::min(line.find(' ', begin), line.size());
    if (line.substr(at, sign - at) == key) {
      return quoted ? unescaped(line.substr(begin + 1, end - begin - 1))
                    : std::string(line.substr(begin, end - begin));
    }
    at = end + (quoted ? 2 : 1);
  }
  return std::nullopt;
}

bool is_about_request(std::string_view line, std::string_view request) {
  const auto id = logfmt_value(line, "req");
  if (!id || id->empty()) return false;
  if (is_part_of(*id, request)) return true;
  for (std::string_view prefix : {"chatcmpl-", "cmpl-"}) {
    if (!request.starts_with(prefix)) continue;
    const std::string_view rest = request.substr(prefix.size());
    return is_part_of(*id, rest) || rest.ends_with("-" + *id);
  }
  return false;
}

std::vector<std::string> list_actors(const LogOptions& options) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(options.dir, error)) {
    const std::string name = entry.path().filename().string();
    if (fs::is_regular_file(entry.path() / (name + ".log"), error)) names.insert(name);
  }
  for (const auto& [actor, directory] : options.actor_dirs) {
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      const std::string name = entry.path().stem().string();
      if (entry.path() == fs::path(log_path(name, options)) && entry.is_regular_file(error))
        names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> log_files(const std::string& actor, const LogOptions& options) {
  const fs::path current = log_path(actor, options);
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_regular_file(current, error)) files.push_back(current.string());
  for (int i = 1; i <= 1000; ++i) {
    const fs::path older = current.parent_path() / (actor + "." + std::to_string(i) + ".log");
    if (!fs::is_regular_file(older, error)) break;
    files.push_back(older.string());
  }
  std::reverse(files.begin(), files.end());
  return files;
}

std::vector<LogPosition> merge_logs(const std::vector<std::string>& actors, const LogOptions& options,
                                    const std::function<void(const std::string&)>& each) {
  std::vector<Lines> sources;
  sources.reserve(actors.size());
  for (const std::string& actor : actors) sources.emplace_back(log_files(actor, options));
  while (true) {
    Lines* first = nullptr;
    for (Lines& source : sources) {
      if (!source.ended() && (first == nullptr || source.time() < first->time())) first = &source;
    }
    if (first == nullptr) break;
    each(first->line());
    first->advance();
  }
  std::vector<LogPosition> positions;
  for (const Lines& source : sources) positions.push_back(source.position());
  return positions;
}

}  // namespace troupe::cli
