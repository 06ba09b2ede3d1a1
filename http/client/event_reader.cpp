#include "http/client/event_reader.h"

#include <utility>

namespace troupe::http {

bool EventReader::feed(std::string_view bytes) {
  for (std::size_t end; wanted_ && (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
    if (line_.empty()) {
      wanted_ = take(bytes.substr(0, end));
      continue;
    }
    line_ += bytes.substr(0, end);
    wanted_ = take(line_);
    line_.clear();
  }
  if (wanted_) line_ += bytes;
  return wanted_;
}

bool EventReader::take(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
    return true;
  }
  if (!line.empty() || !has_data_) return true;  // a comment, or another field
  has_data_ = false;
  const bool wanted = each_(data_);
  data_.clear();
  return wanted;
}

}  // namespace troupe::http
