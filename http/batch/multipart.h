#pragma once
// A multipart/form-data body, read piece by piece: a part with a file name is passed on as it arrives, other
// parts are short fields and kept.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::http {

class Multipart {
 public:
  /// Takes bytes of the file; a failure ends the reading.
  using File = std::function<Status(std::string_view bytes)>;

  /// The boundary of a Content-Type; empty when it is not multipart/form-data or names none of 1 to 70
  /// characters.
  static std::string boundary_of(std::string_view content_type);

  Multipart(const std::string& boundary, File file) : mark_("\r\n--" + boundary), file_(std::move(file)) {}

  /// The next bytes of the body. invalid_argument for what is no such body, has two files, or fields beyond
  /// the limits.
  Status take(std::string_view bytes);
  /// The body is complete. Not ok when its end is missing.
  Status end() const;

  bool has_file() const { return files_ > 0; }
  const std::string& file_name() const { return file_name_; }  ///< as the client wrote it
  /// By name; empty: there is none.
  std::string field(const std::string& name) const;

 private:
  enum class Place { begin, head, data, after_mark, done };

  Status step(bool& more);
  Status read_head(std::string_view head);
  Status pass(std::string_view data);

  const std::string mark_;
  const File file_;
  Place place_ = Place::begin;
  std::string buffer_ = "\r\n";  // so that the first boundary is like the others
  std::string name_;             // of the part that is read
  bool in_file_ = false;
  int files_ = 0;
  std::string file_name_;
  std::map<std::string, std::string> fields_;
};

}  // namespace troupe::http
