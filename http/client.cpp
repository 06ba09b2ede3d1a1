#include "http/client.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "http/client_socket.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMaxBody = 64 << 20;
constexpr int kMaxHeaders = 200;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string trimmed(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return std::string(text);
}

std::string request_text(const ClientOptions& options, const std::string& method, const std::string& target,
                         const std::string& body) {
  std::string out = method + " " + target + " HTTP/1.1\r\nhost: " + options.host + ":" +
                    std::to_string(options.port) + "\r\nuser-agent: troupe\r\nconnection: close\r\n";
  if (!options.api_key.empty()) out += "authorization: Bearer " + options.api_key + "\r\n";
  if (method == "POST" || !body.empty()) {
    out += "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) + "\r\n";
  }
  return out + "\r\n" + body;
}

Result<ClientResponse> read_head(ClientSocket& socket) {
  ClientResponse response;
  do {  // an interim answer (1xx) is followed by the real one
    response = {};
    const Result<std::string> line = socket.read_line();
    if (!line.ok()) return line.status();
    const bool http = line->starts_with("HTTP/1.") && line->size() >= 12;
    if (http) std::from_chars(line->data() + 9, line->data() + 12, response.status);
    if (response.status < 100)
      return failure(Code::internal, "the answer is not HTTP: " + line->substr(0, 80));
    for (int i = 0;; ++i) {
      const Result<std::string> header = socket.read_line();
      if (!header.ok()) return header.status();
      if (header->empty()) break;
      if (i == kMaxHeaders) return failure(Code::internal, "the answer has too many headers");
      const std::size_t colon = header->find(':');
      if (colon == std::string::npos) continue;
      response.headers[lower(header->substr(0, colon))] =
          trimmed(std::string_view(*header).substr(colon + 1));
    }
  } while (response.status < 200);
  return response;
}

/// The body's bytes in pieces, whatever frames them.
class BodyReader {
 public:
  BodyReader(ClientSocket& socket, const ClientResponse& head) : socket_(socket) {
    const auto length = head.headers.find("content-length");
    const auto coding = head.headers.find("transfer-encoding");
    chunked_ = coding != head.headers.end() && lower(coding->second) == "chunked";
    if (chunked_) {
      left_ = 0;
    } else if (length != head.headers.end()) {
      left_ = 0;
      std::from_chars(length->second.data(), length->second.data() + length->second.size(), left_);
    }
    if (head.status == 204 || head.status == 304) left_ = 0, chunked_ = false;
  }

  /// Empty at the end of the body.
  Result<std::string> next() {
    if (ended_ || (!chunked_ && left_ == 0)) return std::string();
    if (chunked_ && left_ == 0) {
      Status status = next_chunk();
      if (!status.ok()) return status;
      if (ended_) return std::string();
    }
    Result<std::string> bytes =
        socket_.read_some(static_cast<std::size_t>(std::min<std::uint64_t>(left_, 1 << 16)));
    if (!bytes.ok()) return bytes;
    if (bytes->empty() && left_ != kUntilClosed) {
      return failure(Code::unavailable, "the connection ended in the middle of the answer");
    }
    if (left_ != kUntilClosed) left_ -= bytes->size();
    return bytes;
  }

 private:
  static constexpr std::uint64_t kUntilClosed = std::numeric_limits<std::uint64_t>::max();

  Status next_chunk() {
    Result<std::string> line = socket_.read_line();
    if (line.ok() && line->empty() && !first_) line = socket_.read_line();  // the end of the chunk before
    if (!line.ok()) return line.status();
    first_ = false;
    const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), left_, 16);
    if (error != std::errc{} || left_ == kUntilClosed) {
      return failure(Code::internal, "the answer has a malformed chunk: " + line->substr(0, 80));
    }
    ended_ = left_ == 0;
    return {};
  }

  ClientSocket& socket_;
  bool chunked_ = false;
  bool first_ = true;
  bool ended_ = false;
  std::uint64_t left_ = kUntilClosed;
};

Status read_body(ClientSocket& socket, ClientResponse& response) {
  BodyReader reader(socket, response);
  while (true) {
    Result<std::string> bytes = reader.next();
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) return {};
    if (response.body.size() + bytes->size() > kMaxBody) {
      return failure(Code::too_large, "the answer is larger than 64 MiB");
    }
    response.body += *bytes;
  }
}

/// Takes the lines of an event stream apart. An event may have several data lines; a blank line ends it.
class EventReader {
 public:
  /// False when `each` wants no more, or at [DONE].
  bool feed(std::string_view bytes, const std::function<bool(std::string_view)>& each) {
    pending_ += bytes;
    std::size_t from = 0;
    bool go_on = true;
    for (std::size_t end; go_on && (end = pending_.find('\n', from)) != std::string::npos; from = end + 1) {
      std::string_view line(pending_.data() + from, end - from);
      if (line.ends_with('\r')) line.remove_suffix(1);
      go_on = take(line, each);
    }
    pending_.erase(0, from);
    return go_on;
  }
  bool too_long() const { return pending_.size() + data_.size() > kMaxBody; }

 private:
  bool take(std::string_view line, const std::function<bool(std::string_view)>& each) {
    if (line.starts_with("data:")) {
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += line;
      has_data_ = true;
      return true;
    }
    if (!line.empty() || !has_data_) return true;  // a comment, or another field
    const std::string data = std::exchange(data_, {});
    has_data_ = false;
    if (data == "[DONE]") {
      return false;
    }
    return each(data);
  }

  std::string pending_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace

std::string error_message(const ClientResponse& response) {
  const auto body = nlohmann::json::parse(response.body, nullptr, false);
  if (body.is_object() && body.contains("error")) {
    const auto& error = body["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
  }
  return "HTTP " + std::to_string(response.status) + " " + response.body.substr(0, 200);
}

Result<ClientResponse> Client::request(const std::string& method, const std::string& target,
                                       const std::string& body) const {
  ClientSocket socket;
  Status status = socket.connect(options_);
  if (status.ok()) status = socket.send(request_text(options_, method, target, body));
  if (!status.ok()) return status;
  Result<ClientResponse> response = read_head(socket);
  if (!response.ok()) return response;
  if (method != "HEAD") status = read_body(socket, *response);
  if (!status.ok()) return status;
  return response;
}

Result<ClientResponse> Client::stream(const std::string& target, const std::string& body,
                                      const std::function<bool(std::string_view)>& each) const {
  ClientSocket socket;
  Status status = socket.connect(options_);
  if (status.ok()) status = socket.send(request_text(options_, "POST", target, body));
  if (!status.ok()) return status;
  Result<ClientResponse> response = read_head(socket);
  if (!response.ok()) return response;
  const auto type = response->headers.find("content-type");
  if (type == response->headers.end() || !type->second.starts_with("text/event-stream")) {
    status = read_body(socket, *response);
    if (!status.ok()) return status;
    return response;
  }
  BodyReader reader(socket, *response);
  EventReader events;
  bool stopped = false;
  const auto pass_on = [&](std::string_view data) {
    stopped = !each(data);
    return !stopped;
  };
  while (true) {
    Result<std::string> bytes = reader.next();
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) return failure(Code::internal, "the stream ended before its end mark");
    if (!events.feed(*bytes, pass_on)) return response;
    if (events.too_long()) return failure(Code::too_large, "an event is larger than 64 MiB");
  }
}

}  // namespace troupe::http
