#pragma once
// TLS over a socket that never blocks, for the server's connections, and the rules of TLS that the client
// follows too. The server drives OpenSSL directly: a stream object that owns its reads and writes, as Asio's,
// would keep 34 KB of buffers for each idle connection.
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // OpenSSL's SSL

namespace troupe::http {

/// Certificates and rules from which sessions begin. Shared by threads; a session keeps what it needs of it.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

/// A context that is owned, with the rules that both sides follow: TLS 1.2 or newer, ciphers with forward
/// secrecy, no compression, no renegotiation. Null when memory is short.
TlsContext make_tls_context();

/// OpenSSL's reason for the last failure of this thread, and forgets it: "no start line".
std::string take_tls_error();

class TlsSession {
 public:
  /// How an operation ended. For the two wants_… it is to be tried again when the socket is ready for that.
  enum class Progress { done, wants_read, wants_write, ended, broken };

  /// The server's end of a new connection. `socket` is borrowed and does not block.
  static std::unique_ptr<TlsSession> accept(const TlsContext& context, int socket);
  /// The client's end of one, likewise.
  static std::unique_ptr<TlsSession> connect(const TlsContext& context, int socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Reads what is there, up to the size of `into`, after the handshake where that is still to be done.
  /// `count` is at least 1 when done. `ended`: the peer has said that it sends no more. If `into` has room
  /// for 16 KiB, nothing that has arrived stays inside: the socket alone tells when there is more.
  Progress read(std::span<char> into, std::size_t& count);
  /// Writes a part of `bytes`; `count` is at least 1 when done. After wants_… the same bytes come first
  /// again.
  Progress write(std::span<const char> bytes, std::size_t& count);
  /// Tells the peer that nothing more is sent, if the handshake was made. Best effort.
  void end();

  bool established() const;
  /// Of a broken session: the client has sent an HTTP request without TLS.
  bool met_plain_http() const { return met_plain_http_; }
  /// Of a broken session: why, in OpenSSL's words or those of the certificate check.
  const std::string& error() const { return error_; }

 private:
  explicit TlsSession(ssl_st* session) : session_(session) {}
  Progress failed(int result);

  ssl_st* session_;
  bool met_plain_http_ = false;
  std::string error_;
};

}  // namespace troupe::http
