#include "http/client/client.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "http/client/client_socket.h"
#include "http/client/response_reader.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMaxBody = 64 << 20;

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

/// Connects, sends the request, and reads the answer as the caller asks for it.
class ClientExchange {
 public:
  ClientExchange(const ClientOptions& options, const std::string& method)
      : socket_(options), reader_(method == "HEAD") {}

  Status begin(const std::string& request) {
    Status status = socket_.connect();
    if (status.ok()) status = socket_.send(request);
    while (status.ok() && !reader_.head_done()) status = read_some();
    if (status.ok()) answer = {.status = reader_.status(), .headers = reader_.headers(), .body = {}};
    return status;
  }

  /// At least one byte more, or done().
  Status read_some() {
    const auto bytes = socket_.read_some();
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) {
      return reader_.end() ? Status()
                           : failure(Code::unavailable, "the connection ended in the middle of the answer");
    }
    return reader_.feed(*bytes) ? Status()
                                : failure(Code::internal, "the answer is not HTTP: " + reader_.error());
  }

  Status read_body() {
    Status status;
    while (status.ok() && !reader_.done()) {
      if (reader_.body().size() > kMaxBody)
        return failure(Code::too_large, "the answer is larger than 64 MiB");
      status = read_some();
    }
    answer.body = std::move(reader_.body());
    return status;
  }

  bool done() const { return reader_.done(); }
  /// The body's bytes since the last call.
  std::string take_body() { return std::exchange(reader_.body(), {}); }

  ClientResponse answer;

 private:
  ClientSocket socket_;
  ResponseReader reader_;
};

/// Splits an event stream into events. An event may have several data lines; a blank line ends it.
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
  ClientExchange exchange(options_, method);
  Status status = exchange.begin(request_text(options_, method, target, body));
  if (status.ok()) status = exchange.read_body();
  if (!status.ok()) return status;
  return std::move(exchange.answer);
}

Result<ClientResponse> Client::stream(const std::string& target, const std::string& body,
                                      const std::function<bool(std::string_view)>& each) const {
  ClientExchange exchange(options_, "POST");
  Status status = exchange.begin(request_text(options_, "POST", target, body));
  if (!status.ok()) return status;
  if (!exchange.answer.headers["content-type"].starts_with("text/event-stream")) {
    status = exchange.read_body();
    if (!status.ok()) return status;
    return std::move(exchange.answer);
  }
  EventReader events;
  while (true) {
    if (!events.feed(exchange.take_body(), each)) return std::move(exchange.answer);
    if (events.too_long()) return failure(Code::too_large, "an event is larger than 64 MiB");
    if (exchange.done()) return failure(Code::internal, "the stream ended before its end mark");
    status = exchange.read_some();
    if (!status.ok()) return status;
  }
}

}  // namespace troupe::http
