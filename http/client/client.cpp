#include "http/client/client.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "http/client/client_connection.h"
#include "http/client/event_reader.h"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxBody = 64 << 20;

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

using Each = std::function<bool(std::string_view data)>;
using Piece = std::function<Status(std::string_view bytes)>;

/// One request after another, each operation waited for.
class Client::Exchange {
 public:
  explicit Exchange(ClientOptions options) : options_(std::move(options)) {}

  /// `each` null: the body is returned, whatever its type; with `piece` that of 200 goes there.
  Result<ClientResponse> run(const std::string& method, const std::string& target, const std::string& body,
                             const Each* each, const std::string& content_type = "application/json",
                             const Piece* piece = nullptr) {
    arrived_.clear();
    Status status = begin({method, target, body, options_.api_key, /*keep_alive=*/true, content_type});
    ClientResponse answer;
    if (status.ok()) {
      answer = {connection_->status(), connection_->headers(), {}};
      const bool events = each != nullptr && answer.headers["content-type"].starts_with("text/event-stream");
      const bool pieces = piece != nullptr && answer.status == 200;
      status = events ? read_events(*each) : pieces ? read_pieces(*piece) : read_body();
    }
    if (!status.ok() || !connection_ || !connection_->keep_alive()) connection_.reset();
    if (!status.ok()) return status;
    answer.body = std::exchange(arrived_, {});
    return answer;
  }

 private:
  template <class Start>
  Status wait(Duration patience, const std::string& too_slow, Start start);
  Status begin(const ClientRequest& request);
  Status connect();
  Status ask(const ClientRequest& request);
  Status read_body();
  Status read_events(const Each& each);
  Status read_pieces(const Piece& piece);
  Status read(Duration patience) {
    return wait(patience, server().text() + " was silent for too long",
                [&](auto done) { connection_->read(done); });
  }
  ServerAddress server() const { return {options_.host, options_.port, options_.tls}; }

  const ClientOptions options_;
  boost::asio::io_context context_{1};
  std::optional<ClientConnection> connection_;
  std::string arrived_;  // of the body
};

/// Starts an operation with `start(done)` and waits for its end: timeout after `patience`, cancelled when
/// options.interrupted returns true. The connection is of no use after either.
template <class Start>
Status Client::Exchange::wait(Duration patience, const std::string& too_slow, Start start) {
  constexpr Duration kInterval = milliseconds(100);  // between two calls of options.interrupted
  std::optional<Status> result;
  context_.restart();
  start([&](const Status& status) { result = status; });
  const TimePoint deadline = Clock::now() + patience;
  while (!result) {
    const Duration left = deadline - Clock::now();
    Status given_up;
    if (options_.interrupted && options_.interrupted()) given_up = failure(Code::cancelled, "interrupted");
    if (given_up.ok() && left <= Duration::zero()) given_up = failure(Code::timeout, too_slow);
    if (!given_up.ok()) {
      connection_->close();
      context_.run();
      return given_up;
    }
    context_.run_one_for(std::min(left, kInterval));
  }
  return *result;
}

Status Client::Exchange::connect() {
  connection_.emplace(context_, server());
  const auto no_server = [&](const std::string& why) {
    return failure(Code::unavailable, "no server answers at " + server().text() + " (" + why + ")");
  };
  boost::system::error_code error;
  const auto places =
      boost::asio::ip::tcp::resolver(context_).resolve(options_.host, std::to_string(options_.port), error);
  if (error) return no_server(error.message());
  const Status status = wait(milliseconds(options_.connect_timeout_ms), "",
                             [&](auto done) { connection_->connect(places, done); });
  return status.code == Code::timeout ? no_server("it does not react") : status;
}

Status Client::Exchange::ask(const ClientRequest& request) {
  const auto sink = [this](std::string_view bytes) { arrived_ += bytes; };
  const Duration patience = milliseconds(options_.first_byte_timeout_ms);
  Status status = wait(patience, server().text() + " reads nothing",
                       [&](auto done) { connection_->send(request, sink, done); });
  for (const TimePoint deadline = Clock::now() + patience; status.ok() && !connection_->head_done();) {
    status = read(deadline - Clock::now());
  }
  return status;
}

/// Sends the request and reads the head of its answer.
Status Client::Exchange::begin(const ClientRequest& request) {
  const bool reused = connection_ && connection_->reusable();
  Status status = reused ? Status() : connect();
  if (status.ok()) status = ask(request);
  // The server closed the idle connection while the request was on its way: it has not been read.
  if (status.code != Code::unavailable || !reused || connection_->begun()) return status;
  status = connect();
  return status.ok() ? ask(request) : status;
}

Status Client::Exchange::read_body() {
  Status status;
  while (status.ok() && !connection_->answered()) {
    status = arrived_.size() <= kMaxBody ? read(milliseconds(options_.idle_timeout_ms))
                                         : failure(Code::too_large, "the answer is larger than 64 MiB");
  }
  return status;
}

Status Client::Exchange::read_pieces(const Piece& piece) {
  Status status;
  while (status.ok()) {
    status = piece(std::exchange(arrived_, {}));
    if (!status.ok() || connection_->answered()) break;
    status = read(milliseconds(options_.idle_timeout_ms));
  }
  return status;
}

Status Client::Exchange::read_events(const Each& each) {
  bool hung_up = false;
  EventReader events([&](std::string_view data) {
    if (data == "[DONE]") return false;
    hung_up = !each(data);
    return !hung_up;
  });
  Status status;
  while (status.ok() && events.feed(std::exchange(arrived_, {}))) {
    if (events.held() > kMaxBody) return failure(Code::too_large, "an event is larger than 64 MiB");
    if (connection_->answered()) return failure(Code::internal, "the stream ended before its end mark");
    status = read(milliseconds(options_.idle_timeout_ms));
  }
  if (hung_up) connection_.reset();
  return status;
}

Client::Client(ClientOptions options) : exchange_(std::make_unique<Exchange>(std::move(options))) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;

Result<ClientResponse> Client::request(const std::string& method, const std::string& target,
                                       const std::string& body) {
  return exchange_->run(method, target, body, nullptr);
}

Result<ClientResponse> Client::post(const std::string& target, const std::string& content_type,
                                    const std::string& body) {
  return exchange_->run("POST", target, body, nullptr, content_type);
}

Result<ClientResponse> Client::download(const std::string& target, const Piece& each) {
  return exchange_->run("GET", target, {}, nullptr, {}, &each);
}

Result<ClientResponse> Client::stream(const std::string& target, const std::string& body,
                                      const std::function<bool(std::string_view)>& each) {
  return exchange_->run("POST", target, body, &each);
}

}  // namespace troupe::http
