#pragma once
// A client for tests of the server: it sends any bytes, asks and reads at different times, and stops reading
// when it is told to. Tests that only want an answer use http::Client.
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "http/client/client.h"

namespace troupe::http::test {

struct Response : ClientResponse {
  bool complete = false;  ///< false: the connection ended, or the time ran out, before

  std::optional<std::string> header(std::string name) const;
  nlohmann::json error() const { return nlohmann::json::parse(body).at("error"); }
};

class RawClient {
 public:
  /// A small `receive_buffer` makes a reader that stops reading noticeable at once.
  explicit RawClient(int port, int receive_buffer = 0);

  void close() { fd_.reset(); }
  /// False when the server stopped taking bytes.
  bool send(std::string_view bytes);
  void post(std::string_view path, std::string_view body, std::string_view extra = {});
  void get(std::string_view path, std::string_view extra = {}, std::string_view method = "GET");

  /// The next answer; an interim one (100) is skipped. `no_body`: that to a HEAD or OPTIONS.
  Response receive(bool no_body = false);

  /// True when the server has closed its side, after reading whatever was still under way.
  bool closed();
  /// What was read behind the last answer.
  const std::string& rest() const { return data_; }
  /// Reads at most so many bytes and forgets them.
  void read_some(std::size_t bytes);
  /// True when something can be read within the time.
  bool readable(std::chrono::milliseconds time);
  /// Reads more; false at the end of the connection.
  bool fill_some();

 private:
  bool fill(std::chrono::steady_clock::time_point deadline);

  OwnedFd fd_;
  std::string data_;
  bool ended_ = false;
};

}  // namespace troupe::http::test
