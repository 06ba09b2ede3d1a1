#include "model/bytes_text.h"

#include <cstdio>

namespace troupe::model {

std::string bytes_text(std::uint64_t bytes) {
  char text[32];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::snprintf(text, sizeof text, mib < 1024 ? "%.0f MiB" : "%.2f GiB", mib < 1024 ? mib : mib / 1024);
  return text;
}

}  // namespace troupe::model
