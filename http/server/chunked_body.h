#pragma once
// A chunked body as it arrives: the data of its chunks, without what frames them. Extensions and trailers are
// checked and dropped.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::http {

class ChunkedBody {
 public:
  enum class Progress {
    need_more,
    data,  ///< `body` has grown: the caller checks its limit
    complete,
    malformed,
    too_long,  ///< the lines between two chunks, or the trailers, exceed kMaxLines
  };
  /// Bytes of the lines between two chunks, or of the last one's line and the trailers.
  static constexpr std::size_t kMaxLines = 64 << 10;

  /// `bytes` begins behind what the calls before have consumed, and holds everything received since. Sets
  /// `consumed`, and appends data to `body`. The outcome does not depend on the pieces in which bytes come.
  /// After `complete`, `malformed` or `too_long` call reset() first.
  Progress read(std::string_view bytes, std::size_t& consumed, std::string& body);
  void reset() { *this = ChunkedBody(); }

 private:
  enum class State : std::uint8_t { size, data, data_end, trailer };
  Progress read_line(std::string_view line);

  State state_ = State::size;
  std::uint64_t left_ = 0;    // of the chunk's data
  std::size_t lines_ = 0;     // bytes of lines since the last data
  std::size_t searched_ = 0;  // of `bytes`, without an end of line
};

}  // namespace troupe::http
