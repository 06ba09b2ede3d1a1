#pragma once
// How far a download is, and its speed over the last seconds.
#include <cstdint>
#include <deque>
#include <string>

namespace troupe::fetch {

struct Progress {
  std::uint64_t bytes_done = 0;  ///< also those of an earlier process
  std::uint64_t bytes_total = 0;
  std::size_t files_done = 0;
  std::size_t files_total = 0;
  double bytes_per_s = 0;  ///< 0: not known yet
};

/// "42 %, 8.60 of 20.4 GB, 0.31 GB/s, 38 s left, 3 of 12 files"
std::string to_string(const Progress& progress);

/// "512 bytes", "1.50 MB", "20.4 GB": three digits, powers of 1000.
std::string byte_text(std::uint64_t bytes);

/// Bytes a second over a window of five seconds.
class RateMeter {
 public:
  /// `bytes_done` at `now_s`, in seconds of any clock that does not go back.
  void add(double now_s, std::uint64_t bytes_done);
  /// 0 until there are two samples.
  double bytes_per_s() const;

 private:
  struct Sample {
    double at_s;
    std::uint64_t bytes;
  };
  std::deque<Sample> samples_;
};

}  // namespace troupe::fetch
