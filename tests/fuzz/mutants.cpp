#include "fuzz/mutants.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

// Of a sanitizer's runtime: called before it ends the process.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace troupe::fuzz {
namespace {

/// What signal handlers and sanitizers may read.
struct Current {
  bool runs = false;
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  char path[256] = {};
};

Current g_current;

void keep_current() {
  if (!g_current.runs) return;
  const int fd = ::open(g_current.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool kept =
      fd >= 0 && ::write(fd, g_current.bytes, g_current.size) == static_cast<ssize_t>(g_current.size);
  char line[320];
  const int length =
      std::snprintf(line, sizeof line, "the input is %s%s\n", kept ? "in " : "lost: ", g_current.path);
  [[maybe_unused]] const ssize_t said = ::write(STDERR_FILENO, line, static_cast<std::size_t>(length));
}

extern "C" void on_signal(int signal) {
  keep_current();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void watch_deaths() {
  ::signal(SIGABRT, on_signal);
  if (__sanitizer_set_death_callback != nullptr) return __sanitizer_set_death_callback(keep_current);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, on_signal);
}

std::size_t below(std::mt19937_64& random, std::size_t count) { return random() % count; }

void change(Input& input, const std::vector<Input>& kept, std::mt19937_64& random) {
  // Ends of ranges of numbers, and what begins and ends things in texts.
  static constexpr std::array<std::uint8_t, 16> kTelling{0,   1,   0x7f, 0x80, 0xff, '"', '\\', '{',
                                                         '}', '[', ']',  '\r', '\n', ':', ',',  '%'};
  const std::size_t at = below(random, input.size() + 1);
  const std::size_t count = std::min(input.size() - at, 1 + below(random, 16));
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (below(random, 6)) {
    case 0:
      if (count > 0) *place ^= static_cast<std::uint8_t>(1u << below(random, 8));
      break;
    case 1:
      if (count > 0) *place = kTelling[below(random, kTelling.size())];
      break;
    case 2: input.insert(place, kTelling[below(random, kTelling.size())]); break;
    case 3: input.erase(place, place + static_cast<std::ptrdiff_t>(count)); break;
    case 4: {
      const Input again(place, place + static_cast<std::ptrdiff_t>(count));
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(random, input.size() + 1)),
                   again.begin(), again.end());
      break;
    }
    default: {
      const Input& other = kept[below(random, kept.size())];
      input.erase(place, input.end());
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(below(random, other.size() + 1)),
                   other.end());
    }
  }
}

}  // namespace

Input mutant_of(const std::vector<Input>& kept, std::mt19937_64& random) {
  Input input = kept[below(random, kept.size())];
  for (std::size_t changes = 1 + below(random, 4); changes > 0; --changes) change(input, kept, random);
  if (input.size() > kMostBytes) input.resize(kMostBytes);
  return input;
}

KeptIfDeadly::KeptIfDeadly(const char* target, const Input& input) {
  static const bool watched = (watch_deaths(), true);
  static_cast<void>(watched);
  std::snprintf(g_current.path, sizeof g_current.path, "deadly-%s-%d", target, static_cast<int>(::getpid()));
  g_current.bytes = input.data();
  g_current.size = input.size();
  g_current.runs = true;
}

KeptIfDeadly::~KeptIfDeadly() { g_current.runs = false; }

}  // namespace troupe::fuzz
