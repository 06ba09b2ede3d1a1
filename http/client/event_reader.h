#pragma once
// Splits a stream of server-sent events into events. No socket.
#include <functional>
#include <string>
#include <string_view>

namespace troupe::http {

class EventReader {
 public:
  /// Called with the data of an event, without the field's name; several data lines are joined by '\n'.
  /// False: no more is wanted.
  using Each = std::function<bool(std::string_view data)>;

  explicit EventReader(Each each) : each_(std::move(each)) {}

  /// Reads on, wherever the bytes are cut. Comments and other fields are skipped. False once `each` has said
  /// that it wants no more; the bytes behind that event are dropped.
  bool feed(std::string_view bytes);
  /// Bytes held of an event that has not ended.
  std::size_t held() const { return line_.size() + data_.size(); }

 private:
  bool take(std::string_view line);

  Each each_;
  std::string line_;  ///< the beginning of a line
  std::string data_;
  bool has_data_ = false;
  bool wanted_ = true;
};

}  // namespace troupe::http
