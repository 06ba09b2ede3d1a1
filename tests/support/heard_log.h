#pragma once
// What actors log, as a test sees it.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace troupe::testing {

/// Remembers what is logged, at once and whatever its level.
struct HeardLog final : LogObserver {
  void event(std::string_view actor, std::string_view event, std::span<const LogField> fields) override {
    std::string line = std::string(actor) + " " + std::string(event);
    for (const LogField& field : fields) line += " " + std::string(field.key) + "=" + std::string(field.text);
    lines.push_back(std::move(line));
  }
  bool has(const std::string& part) const {
    for (const std::string& line : lines) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<std::string> lines;
};

struct NoFile final : LogSink {
  bool write(std::string_view) override { return true; }
  void flush() override {}
};

inline Log log_of(const std::string& actor, const std::shared_ptr<HeardLog>& heard) {
  return Log::to_sink(actor, std::make_shared<NoFile>(), {}).observed_by(heard);
}

}  // namespace troupe::testing
