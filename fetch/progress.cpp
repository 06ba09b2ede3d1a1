#include "fetch/progress.h"

#include <array>
#include <cstdio>

namespace troupe::fetch {
namespace {

constexpr double kWindowS = 5;

std::string formatted(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string three_digits(double value) {
  return formatted(value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
}

std::string time_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 90) return std::to_string(whole) + " s";
  if (whole < 90 * 60) return std::to_string((whole + 30) / 60) + " min";
  return formatted("%.1f h", seconds / 3600);
}

}  // namespace

std::string byte_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {" kB", " MB", " GB", " TB", " PB"};
  if (bytes < 1000) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return three_digits(value) + kUnits[unit];
}

std::string to_string(const Progress& p) {
  const double share =
      p.bytes_total == 0 ? 1 : static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes_total);
  std::string out = std::to_string(static_cast<int>(share * 100)) + " %, " + byte_text(p.bytes_done) +
                    " of " + byte_text(p.bytes_total);
  if (p.bytes_per_s > 0) {
    out += ", " + formatted("%.2f GB/s", p.bytes_per_s * 1e-9);
    out += ", " + time_text(static_cast<double>(p.bytes_total - p.bytes_done) / p.bytes_per_s) + " left";
  }
  return out + ", " + std::to_string(p.files_done) + " of " + std::to_string(p.files_total) +
         (p.files_total == 1 ? " file" : " files");
}

void RateMeter::add(double now_s, std::uint64_t bytes_done) {
  // A file that is fetched again takes bytes back: the rate begins anew.
  if (!samples_.empty() && bytes_done < samples_.back().bytes) samples_.clear();
  samples_.push_back({now_s, bytes_done});
  while (samples_.size() > 2 && samples_[1].at_s <= now_s - kWindowS) samples_.pop_front();
}

double RateMeter::bytes_per_s() const {
  if (samples_.size() < 2) return 0;
  const double seconds = samples_.back().at_s - samples_.front().at_s;
  return seconds <= 0 ? 0 : static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds;
}

}  // namespace troupe::fetch
