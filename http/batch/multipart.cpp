#include "http/batch/multipart.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace troupe::http {
namespace {

constexpr std::size_t kMostHeadBytes = 8 << 10;
constexpr std::size_t kMostFieldBytes = 8 << 10;
constexpr std::size_t kMostFields = 32;
constexpr std::size_t kMostNameBytes = 255;

Status no_form(const std::string& what) {
  return invalid("The body is no multipart/form-data: " + what, {}, "invalid_multipart");
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// The parameter of a header's value: name="value" or name=value; empty when there is none.
std::string header_parameter(std::string_view header, std::string_view name) {
  const std::string low = lower_case(header);
  const std::string sought = ";" + std::string(name) + "=";
  std::string::size_type at = std::string::npos;
  for (std::size_t i = low.find(';'); i != std::string::npos; i = low.find(';', i + 1)) {
    const std::size_t begin = low.find_first_not_of(" \t", i + 1);
    if (begin == std::string::npos) break;
    if (low.compare(begin, sought.size() - 1, sought, 1, sought.size() - 1) == 0) {
      at = begin + sought.size() - 1;
      break;
    }
  }
  if (at == std::string::npos) return {};
  std::string out;
  if (at < header.size() && header[at] == '"') {
    for (++at; at < header.size() && header[at] != '"'; ++at) {
      if (header[at] == '\\' && at + 1 < header.size()) ++at;
      out.push_back(header[at]);
    }
    return out;
  }
  const std::string_view rest = header.substr(at);
  return std::string(rest.substr(0, rest.find_first_of("; \t\r\n")));
}

}  // namespace

std::string Multipart::boundary_of(std::string_view content_type) {
  if (!lower_case(content_type.substr(0, content_type.find(';'))).starts_with("multipart/form-data"))
    return {};
  std::string boundary = header_parameter(content_type, "boundary");
  constexpr std::size_t kMost = 70;
  return boundary.size() <= kMost ? boundary : std::string();
}

std::string Multipart::field(const std::string& name) const {
  const auto found = fields_.find(name);
  return found == fields_.end() ? std::string() : found->second;
}

Status Multipart::pass(std::string_view data) {
  if (data.empty()) return {};
  if (in_file_) return file_(data);
  std::string& value = fields_[name_];
  if (value.size() + data.size() > kMostFieldBytes)
    return no_form("the field " + name_.substr(0, 64) + " has more than 8192 bytes");
  value.append(data);
  return {};
}

Status Multipart::read_head(std::string_view head) {
  name_.clear();
  in_file_ = false;
  for (std::size_t begin = 0; begin < head.size();) {
    const std::size_t end = std::min(head.find("\r\n", begin), head.size());
    const std::string_view line = head.substr(begin, end - begin);
    begin = end + 2;
    if (!lower_case(line).starts_with("content-disposition:")) continue;
    name_ = header_parameter(line, "name").substr(0, kMostNameBytes);
    in_file_ = lower_case(line).find("filename") != std::string::npos;
    if (in_file_) file_name_ = header_parameter(line, "filename").substr(0, kMostNameBytes);
  }
  if (name_.empty()) return no_form("a part has no name");
  if (in_file_ && ++files_ > 1) return no_form("it has more than one file");
  if (!in_file_ && fields_.size() >= kMostFields) return no_form("it has more than 32 fields");
  if (!in_file_) fields_[name_].clear();
  return {};
}

/// Makes one step with what is buffered. `more`: another may follow.
Status Multipart::step(bool& more) {
  more = false;
  switch (place_) {
    case Place::begin:
    case Place::data: {
      const std::size_t at = buffer_.find(mark_);
      const bool found = at != buffer_.npos;
      // A mark may have begun in what is kept.
      const std::size_t sure = found ? at : buffer_.size() - std::min(buffer_.size(), mark_.size() - 1);
      if (place_ == Place::data) {
        if (Status status = pass(std::string_view(buffer_).substr(0, sure)); !status.ok()) return status;
      } else if (sure > kMostHeadBytes) {
        return no_form("its first boundary is missing");
      }
      if (place_ == Place::data || found) buffer_.erase(0, found ? at + mark_.size() : sure);
      if (found) place_ = Place::after_mark;
      more = found;
      return {};
    }
    case Place::after_mark:
      if (buffer_.size() < 2) return {};
      if (buffer_.starts_with("--")) {
        place_ = Place::done;
      } else if (buffer_.starts_with("\r\n")) {
        place_ = Place::head;
      } else {
        return no_form("a boundary does not end its line");
      }
      buffer_.erase(0, 2);
      more = true;
      return {};
    case Place::head: {
      const std::size_t end = buffer_.find("\r\n\r\n");
      if (std::min(end, buffer_.size()) > kMostHeadBytes)
        return no_form("the head of a part has more than 8192 bytes");
      if (end == buffer_.npos) return {};
      if (Status status = read_head(std::string_view(buffer_).substr(0, end)); !status.ok()) return status;
      buffer_.erase(0, end + 4);
      place_ = Place::data;
      more = true;
      return {};
    }
    case Place::done: buffer_.clear(); return {};
  }
  return {};
}

Status Multipart::take(std::string_view bytes) {
  buffer_.append(bytes);
  for (bool more = true; more;) {
    if (Status status = step(more); !status.ok()) return status;
  }
  return {};
}

Status Multipart::end() const {
  return place_ == Place::done ? Status() : no_form("its last boundary is missing");
}

}  // namespace troupe::http
