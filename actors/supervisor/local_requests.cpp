#include "actors/supervisor/local_requests.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>

#include "actors/supervisor/control.h"
#include "actors/supervisor/restart_request.h"
#include "ipc/rendezvous.h"

namespace troupe::supervisor {

Result<LocalRequest> parse_local_request(const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  LocalRequest request;
  if (what == "restart") {
    request.kind = LocalRequest::Kind::restart;
    words >> request.child >> request.wire >> request.messages;
  } else if (what == "join") {
    request.kind = LocalRequest::Kind::join;
  } else if (what != "status") {
    return invalid("\"" + what.substr(0, 32) + "\" is no request: known are status, restart and join");
  }
  if (words.fail()) return invalid("the request is not complete: restart NAME WIRE MESSAGES");
  return request;
}

std::string to_line(const LocalRequest& request) {
  if (request.kind == LocalRequest::Kind::status) return "status\n";
  if (request.kind == LocalRequest::Kind::join) return "join\n";
  return "restart " + request.child + " " + std::to_string(request.wire) + " " +
         std::to_string(request.messages) + "\n";
}

void LocalRequests::add(ipc::Fd client, TimePoint now) {
  if (waiting_.size() < kMost) waiting_.push_back({std::move(client), now + kPatience, {}, {}});
}

std::vector<int> LocalRequests::descriptors() const {
  std::vector<int> all;
  for (const Waiting& one : waiting_) all.push_back(one.client.get());
  return all;
}

std::optional<ReceivedRequest> LocalRequests::read(int fd) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [fd](const Waiting& one) { return one.client.get() == fd; });
  if (it == waiting_.end()) return std::nullopt;
  std::array<char, kLongest> part{};
  ipc::Fd attached;
  const ssize_t n = receive_attached(fd, part.data(), part.size(), attached);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  if (attached) it->attached = std::move(attached);
  if (n > 0) it->text.append(part.data(), static_cast<std::size_t>(n));
  const std::size_t end = it->text.find('\n');
  const bool over = n <= 0 || it->text.size() > kLongest;
  if (end == std::string::npos && !over) return std::nullopt;
  Waiting done = std::move(*it);
  waiting_.erase(it);
  if (end == std::string::npos) return std::nullopt;
  auto request = parse_local_request(done.text.substr(0, end));
  if (!request.ok()) {
    answer(done.client, restart_answer(request.status()));
    return std::nullopt;
  }
  if ((request->kind == LocalRequest::Kind::join) != done.attached.valid()) {
    answer(done.client, restart_answer(invalid("a descriptor comes with join, and with nothing else")));
    return std::nullopt;
  }
  return ReceivedRequest{*std::move(request), std::move(done.client), std::move(done.attached)};
}

void LocalRequests::expire(TimePoint now) {
  std::erase_if(waiting_, [now](const Waiting& one) { return now >= one.until; });
}

std::optional<TimePoint> LocalRequests::deadline() const {
  std::optional<TimePoint> first;
  for (const Waiting& one : waiting_) {
    if (!first || one.until < *first) first = one.until;
  }
  return first;
}

void answer(const ipc::Fd& client, const std::string& line) {
  const std::string text = line + "\n";
  // A line is far smaller than a socket's buffer.
  [[maybe_unused]] const ssize_t n =
      send(client.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

Result<std::string> ask_supervisor(const std::string& runtime_dir, int port, const LocalRequest& request,
                                   Duration patience) {
  const TimePoint deadline = Clock::now() + patience;
  const auto socket = ipc::connect_port(runtime_dir, ipc::PortKind::http, port, deadline);
  if (!socket.ok()) return socket.status();
  const std::string line = to_line(request);
  const std::string server = "the server on port " + std::to_string(port);
  if (send(socket->get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    return failure(Code::unavailable, server + " ended while it was asked");
  }
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{socket->get(), POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) == 0)
      return failure(Code::timeout, server + " did not answer in time");
    std::array<char, 4096> part{};
    const ssize_t n = recv(socket->get(), part.data(), part.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  if (text.empty()) return failure(Code::unavailable, server + " ended while it was asked");
  if (text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace troupe::supervisor
