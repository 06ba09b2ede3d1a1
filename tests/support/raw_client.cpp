#include "support/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>

#include "support/patience.h"

namespace troupe::http::test {
namespace {

namespace beast = boost::beast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using troupe::test::kPatience;

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::optional<std::string> Response::header(std::string name) const {
  const auto found = headers.find(lower_case(std::move(name)));
  return found == headers.end() ? std::nullopt : std::optional(found->second);
}

RawClient::RawClient(int port, int receive_buffer) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer > 0)
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void RawClient::post(std::string_view path, std::string_view body, std::string_view extra) {
  send("POST " + std::string(path) +
       " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
       std::to_string(body.size()) + "\r\n" + std::string(extra) + "\r\n" + std::string(body));
}

void RawClient::get(std::string_view path, std::string_view extra, std::string_view method) {
  send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" +
       std::string(extra) + "\r\n");
}

Response RawClient::receive(bool no_body) {
  const auto deadline = steady_clock::now() + kPatience;
  beast::http::response_parser<beast::http::string_body> parser;
  parser.eager(true);
  parser.body_limit(boost::none);
  parser.skip(no_body);
  beast::error_code error;
  while (!parser.is_done() && (!data_.empty() || fill(deadline))) {
    data_.erase(0, parser.put(boost::asio::buffer(data_), error));
    if (error == beast::http::error::need_more ? !fill(deadline) : error.failed()) break;
  }
  Response response;
  if (!parser.is_header_done()) return response;
  response.complete = parser.is_done();
  auto message = parser.release();
  if (response.complete && message.result_int() == 100) return receive(no_body);
  response.status = static_cast<int>(message.result_int());
  response.body = std::move(message.body());
  for (const auto& field : message) response.headers[lower_case(field.name_string())] = field.value();
  return response;
}

bool RawClient::closed() {
  const auto deadline = steady_clock::now() + kPatience;
  while (fill(deadline)) {
  }
  return ended_;
}

void RawClient::read_some(std::size_t bytes) {
  char buffer[256];
  (void)::recv(fd_.get(), buffer, std::min(bytes, sizeof buffer), MSG_DONTWAIT);
}

bool RawClient::readable(milliseconds time) {
  pollfd waiting{fd_.get(), POLLIN, 0};
  return ::poll(&waiting, 1, static_cast<int>(time.count())) > 0;
}

bool RawClient::fill_some() { return fill(steady_clock::now() + kPatience); }

bool RawClient::fill(steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  if (left <= milliseconds::zero() || !readable(left)) return false;
  char buffer[16384];
  const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
  if (n <= 0) {
    ended_ = true;
    return false;
  }
  data_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

}  // namespace troupe::http::test
