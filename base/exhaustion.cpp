#include "base/exhaustion.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

namespace troupe {
namespace {

constexpr std::size_t kLongest = 512;

/// Formats without taking memory.
void describe(const char* what, char (&text)[kLongest]) {
  rlimit space{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_AS, &space);
  if (space.rlim_cur == RLIM_INFINITY) {
    std::snprintf(text, sizeof text, "the process can get no more %s", what);
  } else {
    std::snprintf(text, sizeof text,
                  "the process can get no more %s: its address space is limited to %llu MiB (ulimit -v); "
                  "raise or remove "
                  "that limit",
                  what, static_cast<unsigned long long>(space.rlim_cur >> 20));
  }
}

[[noreturn]] void say_and_exit(const char* what) {
  char sentence[kLongest], line[kLongest + 16];
  describe(what, sentence);
  const int length = std::snprintf(line, sizeof line, "troupe: %s\n", sentence);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(length));
  ::_exit(1);
}

[[noreturn]] void end_process() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::bad_alloc&) {
      say_and_exit("memory");
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) say_and_exit("threads");
      if (error.code() == std::errc::not_enough_memory) say_and_exit("memory");
      std::fprintf(stderr, "troupe: %s\n", error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "troupe: %s\n", error.what());
    } catch (...) {
      std::fputs("troupe: an exception of no standard type\n", stderr);
    }
  }
  std::abort();
}

}  // namespace

std::string exhaustion_message(const char* what) {
  char text[kLongest];
  describe(what, text);
  return text;
}

std::string address_space_remark() {
  rlimit space{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_AS, &space);
  if (space.rlim_cur == RLIM_INFINITY) return {};
  return "; the address space is limited to " + std::to_string(space.rlim_cur >> 20) +
         " MiB (ulimit -v), so a lack of memory may be the reason";
}

void explain_exhaustion() { std::set_terminate(end_process); }

}  // namespace troupe
