#include "actors/supervisor/child_arguments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>

#include "config/dump.h"

namespace troupe::supervisor {

namespace {

struct Flag {
  const char* name;
  int ChildArguments::*member;
  bool required;
};
constexpr Flag kFlags[] = {
    {"--options-fd=", &ChildArguments::options_fd, true},
    {"--control-fd=", &ChildArguments::control_fd, true},
    {"--listen-fd=", &ChildArguments::listen_fd, false},
    {"--metrics-fd=", &ChildArguments::metrics_fd, false},
    {"--ranks-fd=", &ChildArguments::ranks_fd, false},
    {"--patches-fd=", &ChildArguments::patches_fd, false},
    {"--vocabulary-fd=", &ChildArguments::vocabulary_fd, false},
    {"--fd=", &ChildArguments::socket_fd, false},
    {"--rank=", &ChildArguments::rank, false},
    {"--engine=", &ChildArguments::engine, false},
};

struct ListFlag {
  const char* name;
  std::vector<int> ChildArguments::*member;
};
constexpr ListFlag kListFlags[] = {
    {"--model-fd=", &ChildArguments::model_fds},
    {"--model-vocabulary-fd=", &ChildArguments::model_vocabulary_fds},
    {"--names-fd=", &ChildArguments::names_fds},
    {"--peer-names-fd=", &ChildArguments::peer_names_fds},
    {"--fetch-fd=", &ChildArguments::fetch_fds},
    {"--give-fd=", &ChildArguments::give_fds},
    {"--step-fd=", &ChildArguments::step_fds},
    {"--cache-fd=", &ChildArguments::cache_fds},
    {"--link-step-fd=", &ChildArguments::link_step_fds},
    {"--link-cache-fd=", &ChildArguments::link_cache_fds},
    {"--text-step-fd=", &ChildArguments::text_step_fds},
    {"--text-cache-fd=", &ChildArguments::text_cache_fds},
    {"--media-fd=", &ChildArguments::media_fds},
    {"--video-fd=", &ChildArguments::video_fds},
};

/// A whole number from 0; -1 of anything else.
int read_number(std::string_view text) {
  int value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return whole ? std::max(value, -1) : -1;
}

/// The numbers of one word, into the member that it names.
Status take(std::string_view word, ChildArguments& arguments) {
  const Status bad = invalid("\"" + std::string(word) + "\" must name numbers from 0");
  for (const Flag& flag : kFlags) {
    if (!word.starts_with(flag.name)) continue;
    const int value = read_number(word.substr(std::strlen(flag.name)));
    arguments.*flag.member = value;
    return value < 0 ? bad : Status();
  }
  for (const ListFlag& flag : kListFlags) {
    if (!word.starts_with(flag.name)) continue;
    std::string_view rest = word.substr(std::strlen(flag.name));
    for (bool more = true; more;) {
      const std::size_t comma = rest.find(',');
      const int value = read_number(rest.substr(0, comma));
      if (value < 0) return bad;
      (arguments.*flag.member).push_back(value);
      more = comma != rest.npos;
      if (more) rest.remove_prefix(comma + 1);
    }
    return {};
  }
  return invalid("\"" + std::string(word) +
                 "\" is not an argument of a child; troupe serve starts these processes");
}

}  // namespace

std::vector<int> ChildArguments::descriptors() const {
  std::vector<int> all;
  for (const Flag& flag : kFlags) {
    const bool index = flag.member == &ChildArguments::rank || flag.member == &ChildArguments::engine;
    if (!index && this->*flag.member >= 0) all.push_back(this->*flag.member);
  }
  for (const ListFlag& flag : kListFlags) {
    all.insert(all.end(), (this->*flag.member).begin(), (this->*flag.member).end());
  }
  return all;
}

std::vector<std::string> to_words(const ChildArguments& arguments) {
  std::vector<std::string> words;
  for (const Flag& flag : kFlags) {
    if (arguments.*flag.member >= 0) words.push_back(flag.name + std::to_string(arguments.*flag.member));
  }
  for (const ListFlag& flag : kListFlags) {
    std::string numbers;
    for (const int number : arguments.*flag.member)
      numbers += (numbers.empty() ? "" : ",") + std::to_string(number);
    if (!numbers.empty()) words.push_back(flag.name + numbers);
  }
  return words;
}

Result<ChildArguments> parse_child_arguments(const std::vector<std::string>& words) {
  ChildArguments arguments;
  for (const std::string& word : words) {
    if (Status status = take(word, arguments); !status.ok()) return status;
  }
  const auto missing = [](const char* name) {
    return invalid(std::string(name) + " is missing; troupe serve starts this process");
  };
  for (const Flag& flag : kFlags) {
    if (flag.required && arguments.*flag.member < 0) return missing(flag.name);
  }
  if (arguments.step_fds.empty() && arguments.link_step_fds.empty()) return missing("--step-fd=");
  if (arguments.step_fds.size() != arguments.cache_fds.size() ||
      arguments.link_step_fds.size() != arguments.link_cache_fds.size() ||
      arguments.text_step_fds.size() != arguments.text_cache_fds.size()) {
    return invalid(
        "--step-fd= and --cache-fd= name different numbers of rings; troupe serve starts this process");
  }
  for (const int fd : arguments.descriptors()) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) continue;
    return invalid(std::to_string(fd) + " is not an open descriptor; troupe serve starts this process");
  }
  return arguments;
}

Result<ipc::Fd> make_options_file(const config::Options& options) {
  const std::string text = config::to_json(options);
  ipc::Fd fd(memfd_create("troupe-options", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return failure(Code::internal,
                   std::string("no memory file for the options can be made: ") + std::strerror(errno));
  }
  return fd;
}

Result<config::Options> read_options_file(int fd) {
  struct stat st {};
  constexpr off_t kMaxBytes = 16 << 20;
  if (fstat(fd, &st) != 0 || st.st_size <= 0 || st.st_size > kMaxBytes) {
    return invalid("--options-fd does not name a file of options");
  }
  std::string text(static_cast<std::size_t>(st.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failure(Code::internal, "the options cannot be read");
    done += static_cast<std::size_t>(n);
  }
  return config::from_json(text);
}

}  // namespace troupe::supervisor
