#pragma once
// CHECK is for programmer errors only: a broken invariant of our own. It prints the expression and
// the place, and aborts; the supervisor then restarts the process. Input never reaches a CHECK.

namespace troupe {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

#define TROUPE_CHECK(expression) \
  ((expression) ? void(0) : ::troupe::check_failed(#expression, __FILE__, __LINE__))
