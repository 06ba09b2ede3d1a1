#include "actors/supervisor/child_arguments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

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
    {"--step-fd=", &ChildArguments::step_fd, true},
    {"--cache-fd=", &ChildArguments::cache_fd, true},
    {"--rank=", &ChildArguments::rank, false},
};

}  // namespace

std::vector<std::string> to_words(const ChildArguments& arguments) {
  std::vector<std::string> words;
  for (const Flag& flag : kFlags) {
    if (arguments.*flag.member >= 0) words.push_back(flag.name + std::to_string(arguments.*flag.member));
  }
  return words;
}

Result<ChildArguments> parse_child_arguments(const std::vector<std::string>& words) {
  ChildArguments arguments;
  for (const std::string& word : words) {
    const Flag* found = nullptr;
    for (const Flag& flag : kFlags) {
      if (word.starts_with(flag.name)) found = &flag;
    }
    if (found == nullptr)
      return invalid("\"" + word + "\" is not an argument of a child; troupe serve starts these processes");
    int value = -1;
    const char* begin = word.data() + std::strlen(found->name);
    const char* end = word.data() + word.size();
    if (const auto read = std::from_chars(begin, end, value); read.ptr != end || begin == end || value < 0) {
      return invalid("\"" + word + "\" must name a number from 0");
    }
    arguments.*found->member = value;
  }
  for (const Flag& flag : kFlags) {
    const int fd = arguments.*flag.member;
    if (flag.member == &ChildArguments::rank || (fd < 0 && !flag.required)) continue;
    if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return invalid(std::string(flag.name) +
                     (fd < 0 ? " is missing" : std::to_string(fd) + " is not an open descriptor") +
                     "; troupe serve starts this process");
    }
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
