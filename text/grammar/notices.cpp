#include "text/grammar/notices.h"

#include <support/logging.h>

namespace troupe::grammar {
namespace {

thread_local Notices* current = nullptr;

/// Says what is wrong, without the time and place in xgrammar's sources.
class Fatal : public xgrammar::LogFatalError {
 public:
  Fatal(const std::string& file, int line, const std::string& message)
      : LogFatalError(file, line, message), message_(message) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace

Notices::Notices() { current = this; }
Notices::~Notices() { current = nullptr; }

}  // namespace troupe::grammar

// The two functions that xgrammar asks its user for.
namespace xgrammar {

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw troupe::grammar::Fatal(file, line, message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && troupe::grammar::current != nullptr) {
    troupe::grammar::current->add(message);
  }
}

}  // namespace xgrammar
