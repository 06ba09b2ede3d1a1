#include "http/client/client_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <optional>
#include <utility>
#include <variant>

namespace troupe::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using Error = boost::system::error_code;
using TlsStream = beast::ssl_stream<tcp::socket>;

constexpr std::size_t kHeadBytes = 64 << 10;  // at most, of a head or the header of a chunk
constexpr std::size_t kReadBytes = 16 << 10;  // of a read: each of many connections has a buffer for it

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

/// The certificate has to be made out to `host`, if the context checks certificates.
void expect_host(SSL* session, const std::string& host) {
  if (is_address(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str());
  } else {
    SSL_set1_host(session, host.c_str());
    SSL_set_tlsext_host_name(session, host.c_str());
  }
}

std::variant<tcp::socket, TlsStream> make_stream(asio::io_context& context, const TlsContext& tls) {
  if (tls == nullptr) return tcp::socket(context);
  SSL_CTX_up_ref(tls.get());
  asio::ssl::context shared(tls.get());  // gives the reference back; the stream takes one of its own
  return TlsStream(context, shared);
}

std::string lower_case(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

}  // namespace

struct ClientConnection::Impl {
  /// A body that is handed on as it is parsed. Beast's own string_body reserves as many bytes as the server
  /// announces.
  struct SunkBody {
    using value_type = const ClientConnection::BodySink*;
    class reader {
     public:
      template <bool is_request, class Fields>
      reader(beast::http::header<is_request, Fields>&, value_type& sink) : sink_(sink) {}
      void init(const boost::optional<std::uint64_t>&, Error& error) { error = {}; }
      template <class Buffers>
      std::size_t put(const Buffers& buffers, Error& error) {
        error = {};
        std::size_t size = 0;
        for (const asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
          (*sink_)({static_cast<const char*>(buffer.data()), buffer.size()});
          size += buffer.size();
        }
        return size;
      }
      void finish(Error& error) { error = {}; }

     private:
      const value_type& sink_;
    };
  };
  using Parser = beast::http::response_parser<SunkBody>;

  Impl(asio::io_context& context, ServerAddress place)
      : server(std::move(place)), stream(make_stream(context, server.tls)) {}

  tcp::socket& socket() {
    auto* tls = std::get_if<TlsStream>(&stream);
    return tls != nullptr ? tls->next_layer() : std::get<tcp::socket>(stream);
  }
  void close() {
    Error ignored;
    socket().shutdown(tcp::socket::shutdown_both, ignored);
    socket().close(ignored);
  }

  void connected(const Error& error, Done done);
  Status broken(const Error& error);
  void expect_answer();
  Status take(Error error);

  const ServerAddress server;
  std::variant<tcp::socket, TlsStream> stream;
  beast::http::request<beast::http::string_body> request;
  BodySink sink;
  std::optional<Parser> parser;  // of the answer to `request`
  beast::flat_buffer buffer;     // bytes that the parser has not taken
};

/// The status of an operation on the stream that has failed.
Status ClientConnection::Impl::broken(const Error& error) {
  auto* tls = std::get_if<TlsStream>(&stream);
  if (tls == nullptr) {
    return failure(Code::unavailable, "the connection to " + server.text() + " broke: " + error.message());
  }
  const char* reason = nullptr;
  if (error.category() == asio::error::get_ssl_category()) {
    const auto code = static_cast<unsigned long>(error.value());
    reason = ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED
                 ? X509_verify_cert_error_string(SSL_get_verify_result(tls->native_handle()))
                 : ERR_reason_error_string(code);
  }
  return failure(Code::unauthorized, "TLS with " + server.text() + ": " +
                                         (reason != nullptr ? reason : "the connection was closed"));
}

void ClientConnection::Impl::connected(const Error& error, Done done) {
  if (error) {
    return done(
        failure(Code::unavailable, "no server answers at " + server.text() + " (" + error.message() + ")"));
  }
  Error ignored;
  ::fcntl(socket().native_handle(), F_SETFD, FD_CLOEXEC);  // Asio opens without it
  socket().set_option(tcp::no_delay(true), ignored);
  socket().non_blocking(true, ignored);
  auto* tls = std::get_if<TlsStream>(&stream);
  if (tls == nullptr) return done({});
  expect_host(tls->native_handle(), server.host);
  tls->async_handshake(asio::ssl::stream_base::client, [this, done = std::move(done)](const Error& failed) {
    done(failed ? broken(failed) : Status());
  });
}

void ClientConnection::Impl::expect_answer() {
  parser.emplace();
  parser->get().body() = &sink;
  parser->header_limit(kHeadBytes);
  parser->body_limit(boost::none);
  parser->eager(true);
  parser->skip(request.method() == beast::http::verb::head);
}

/// Parses what has come since the last time.
Status ClientConnection::Impl::take(Error error) {
  if (error == asio::error::eof) {
    error = {};
    if (parser->got_some()) parser->put_eof(error);
    if (!parser->is_done()) error = beast::http::error::partial_message;
  }
  while (!error && buffer.size() > 0 && !parser->is_done()) {
    buffer.consume(parser->put(buffer.data(), error));
    if (parser->is_done() && parser->get().result_int() < 200) expect_answer();
  }
  if (error == beast::http::error::need_more && buffer.size() <= kHeadBytes) return {};
  if (!error) return {};
  if (error == beast::http::error::partial_message) {
    return failure(Code::unavailable, "the connection ended in the middle of the answer");
  }
  if (error.category() == beast::http::make_error_code(beast::http::error::need_more).category()) {
    return failure(Code::internal, "the answer is not HTTP: " + error.message());
  }
  return broken(error);
}

ClientConnection::ClientConnection(asio::io_context& context, ServerAddress server)
    : impl_(std::make_unique<Impl>(context, std::move(server))) {}

ClientConnection::~ClientConnection() { close(); }

void ClientConnection::connect(const Places& places, Done done) {
  asio::async_connect(impl_->socket(), places,
                      [impl = impl_.get(), done = std::move(done)](const Error& error, const tcp::endpoint&) {
                        impl->connected(error, done);
                      });
}

void ClientConnection::send(ClientRequest request, BodySink sink, Done done) {
  using beast::http::field;
  auto& out = impl_->request;
  const std::string& host = impl_->server.host;
  out = {beast::http::string_to_verb(request.method), request.target, 11};
  out.set(field::host,
          (host.find(':') != host.npos ? "[" + host + "]" : host) + ":" + std::to_string(impl_->server.port));
  out.set(field::user_agent, "troupe");
  if (!request.api_key.empty()) out.set(field::authorization, "Bearer " + request.api_key);
  if (!request.body.empty()) out.set(field::content_type, request.content_type);
  out.keep_alive(request.keep_alive);
  out.body() = std::move(request.body);
  out.prepare_payload();
  impl_->sink = std::move(sink);
  impl_->expect_answer();
  impl_->buffer.clear();
  const auto sent = [impl = impl_.get(), done = std::move(done)](const Error& error, std::size_t) {
    // The server may refuse before it has read everything: its answer can be read then.
    const bool refused = error == asio::error::broken_pipe || error == asio::error::connection_reset;
    done(error && !refused ? impl->broken(error) : Status());
  };
  std::visit([&](auto& stream) { beast::http::async_write(stream, out, sent); }, impl_->stream);
}

void ClientConnection::read(Done done) {
  const auto arrived = [impl = impl_.get(), done = std::move(done)](const Error& error, std::size_t bytes) {
    impl->buffer.commit(bytes);
    done(impl->take(error));
  };
  std::visit([&](auto& stream) { stream.async_read_some(impl_->buffer.prepare(kReadBytes), arrived); },
             impl_->stream);
}

void ClientConnection::close() { impl_->close(); }

bool ClientConnection::begun() const { return impl_->parser && impl_->parser->got_some(); }
bool ClientConnection::head_done() const { return impl_->parser && impl_->parser->is_header_done(); }
bool ClientConnection::answered() const { return impl_->parser && impl_->parser->is_done(); }
bool ClientConnection::keep_alive() const { return impl_->parser && impl_->parser->keep_alive(); }
int ClientConnection::status() const { return static_cast<int>(impl_->parser->get().result_int()); }

std::map<std::string, std::string> ClientConnection::headers() const {
  std::map<std::string, std::string> out;
  for (const auto& field : impl_->parser->get()) out[lower_case(field.name_string())] = field.value();
  return out;
}

bool ClientConnection::reusable() {
  impl_->sink = [](std::string_view) {};
  Error error;
  for (int reads = 0; reads < 2 && !error && impl_->socket().is_open() && impl_->parser; ++reads) {
    const std::size_t bytes =
        std::visit([&](auto& stream) { return stream.read_some(impl_->buffer.prepare(kReadBytes), error); },
                   impl_->stream);
    impl_->buffer.commit(bytes);
    if (!error && !impl_->take({}).ok()) return false;
  }
  return error == asio::error::would_block && answered() && keep_alive() && impl_->buffer.size() == 0;
}

}  // namespace troupe::http
