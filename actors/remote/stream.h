#pragma once
// A TCP connection to a peer that has proved who it is: TLS 1.3, a certificate on both sides
// (cluster_keys.h). One thread reads and another writes.
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "config/address.h"
#include "http/server/tls_session.h"
#include "ipc/fd.h"

namespace troupe::remote {

/// How often a wait looks whether it is to stop.
inline constexpr Duration kStopLook = std::chrono::milliseconds(100);

class Stream {
 public:
  /// Connects by the deadline. Errors follow the peer's name: "cannot be reached: Connection refused". The
  /// handshake is made by the first read or write.
  static Result<std::unique_ptr<Stream>> connect(const config::Address& address,
                                                 const http::TlsContext& context, TimePoint deadline,
                                                 const std::stop_token& stop);
  /// The server's end of a connection that was accepted.
  static Result<std::unique_ptr<Stream>> accept(ipc::Fd socket, const http::TlsContext& context);

  enum class Progress { done, late, failed };

  /// Reads what has come; waits for at least a byte until the deadline.
  Progress read(std::span<char> into, std::size_t& count, TimePoint deadline);

  /// Writes all of it. `late`: not before the deadline, or asked to stop; then only close() may follow.
  Progress write(std::span<const std::byte> bytes, TimePoint deadline, const std::stop_token& stop);

  /// Ends both directions: a thread that waits in read() or write() returns. Any thread.
  void close();

  /// Why read() or write() has failed.
  std::string error() const;
  /// The peer has shown a certificate of the authority.
  bool established() const;

 private:
  Stream(ipc::Fd socket, std::unique_ptr<http::TlsSession> session)
      : socket_(std::move(socket)), session_(std::move(session)) {}
  bool wait(http::TlsSession::Progress progress, TimePoint deadline) const;

  const ipc::Fd socket_;
  mutable std::mutex mutex_;                         // of the session, which both threads use
  const std::unique_ptr<http::TlsSession> session_;  // never waits
};

}  // namespace troupe::remote
