#include "http/server/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace troupe::http {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

// ---- A BIO over a socket -----------------------------------------------------------------------------
// OpenSSL's own writes with write(2), which raises SIGPIPE when the peer is gone.

int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

int send_some(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int receive_some(BIO* bio, char* into, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(socket_of(bio), into, static_cast<std::size_t>(size), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_bio(int socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, send_some);
    BIO_meth_set_read(made, receive_some);
    BIO_meth_set_ctrl(made, control);
    return made;
  }();
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

/// Null when memory is short.
SSL* make_session(const TlsContext& context, int socket) {
  SSL* session = SSL_new(context.get());
  BIO* bio = session == nullptr ? nullptr : make_bio(socket);
  if (bio == nullptr) {
    SSL_free(session);
    return nullptr;
  }
  SSL_set_bio(session, bio, bio);
  return session;
}

}  // namespace

TlsContext make_tls_context() {
  TlsContext context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) return nullptr;
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(raw, "ECDHE+AESGCM:ECDHE+CHACHA20");  // of TLS 1.2; those of 1.3 are all good
  SSL_CTX_set_options(raw, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_PRIORITIZE_CHACHA);
  // A buffer may move between two tries of a write, and idle sessions give their buffers back.
  SSL_CTX_set_mode(
      raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);  // tickets resume sessions, without memory here
  return context;
}

std::string take_tls_error() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "unknown error";
}

std::unique_ptr<TlsSession> TlsSession::accept(const TlsContext& context, int socket) {
  SSL* session = make_session(context, socket);
  if (session == nullptr) return nullptr;
  SSL_set_accept_state(session);
  return std::unique_ptr<TlsSession>(new TlsSession(session));
}

std::unique_ptr<TlsSession> TlsSession::connect(const TlsContext& context, int socket) {
  SSL* session = make_session(context, socket);
  if (session == nullptr) return nullptr;
  SSL_set_connect_state(session);
  return std::unique_ptr<TlsSession>(new TlsSession(session));
}

TlsSession::~TlsSession() { SSL_free(session_); }

TlsSession::Progress TlsSession::read(std::span<char> into, std::size_t& count) {
  count = 0;
  // A call returns at most one record. Another one is begun only if the whole of it fits.
  do {
    ERR_clear_error();
    std::size_t n = 0;
    const int result = SSL_read_ex(session_, into.data() + count, into.size() - count, &n);
    if (result != 1) return count > 0 ? Progress::done : failed(result);
    count += n;
  } while (into.size() - count >= kRecordBytes);
  return Progress::done;
}

TlsSession::Progress TlsSession::write(std::span<const char> bytes, std::size_t& count) {
  ERR_clear_error();
  count = 0;
  const int result = SSL_write_ex(session_, bytes.data(), bytes.size(), &count);
  return result == 1 ? Progress::done : failed(result);
}

TlsSession::Progress TlsSession::failed(int result) {
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ: return Progress::wants_read;
    case SSL_ERROR_WANT_WRITE: return Progress::wants_write;
    case SSL_ERROR_ZERO_RETURN: return Progress::ended;
    default: break;
  }
  const unsigned long code = ERR_peek_error();
  met_plain_http_ = ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
  const long verdict = SSL_get_verify_result(session_);
  error_ = verdict != X509_V_OK ? X509_verify_cert_error_string(verdict)
           : code != 0          ? take_tls_error()
                                : "the connection was closed";
  ERR_clear_error();
  return Progress::broken;
}

void TlsSession::end() {
  if (!established() || !error_.empty()) return;
  ERR_clear_error();
  SSL_shutdown(session_);
  ERR_clear_error();
}

bool TlsSession::established() const { return SSL_is_init_finished(session_) == 1; }

}  // namespace troupe::http
