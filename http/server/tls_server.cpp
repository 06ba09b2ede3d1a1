#include "http/server/tls_server.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

namespace troupe::http {
namespace {

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

/// Set while a key asks for its passphrase, which nobody is there to type.
int no_passphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

std::unique_ptr<BIO, FreeBio> read_from(const std::string& pem) {
  return std::unique_ptr<BIO, FreeBio>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

Status bad(const char* flag, const std::string& path, const std::string& why) {
  return invalid(std::string("--") + flag + " " + path + ": " + why, flag, "invalid_value");
}

/// The server's own certificate comes first, those that vouch for it follow.
Status use_certificates(SSL_CTX* context, const config::HttpOptions& http) {
  const auto refuse = [&](const std::string& why) { return bad("ssl-certfile", http.ssl_certfile, why); };
  ERR_clear_error();
  const auto pem = read_from(http.certificate_pem);
  bool asked = false;
  const Certificate own(PEM_read_bio_X509_AUX(pem.get(), nullptr, no_passphrase, &asked));
  if (own == nullptr) return refuse("holds no certificate in PEM form (" + take_tls_error() + ")");
  if (SSL_CTX_use_certificate(context, own.get()) != 1) return refuse("cannot be used: " + take_tls_error());
  while (X509* next = PEM_read_bio_X509(pem.get(), nullptr, no_passphrase, &asked)) {
    const Certificate link(next);
    if (SSL_CTX_add1_chain_cert(context, link.get()) != 1) {
      return refuse("its chain cannot be used: " + take_tls_error());
    }
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string why = take_tls_error();
  return at_end ? Status() : refuse("a certificate of its chain is malformed (" + why + ")");
}

Status use_key(SSL_CTX* context, const config::HttpOptions& http) {
  const bool apart = !http.ssl_keyfile.empty();
  const auto refuse = [&](const std::string& why) {
    return apart ? bad("ssl-keyfile", http.ssl_keyfile, why) : bad("ssl-certfile", http.ssl_certfile, why);
  };
  ERR_clear_error();
  const auto pem = read_from(http.private_key_pem);
  bool asked = false;
  const Key key(PEM_read_bio_PrivateKey(pem.get(), nullptr, no_passphrase, &asked));
  if (key == nullptr && asked) {
    ERR_clear_error();
    return refuse(
        "the private key is encrypted; store it without a passphrase, readable by the server alone");
  }
  if (key == nullptr) {
    return refuse("holds no private key in PEM form (" + take_tls_error() + ")" +
                  (apart ? "" : "; name its file with --ssl-keyfile"));
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return refuse("is not the key of the certificate in --ssl-certfile " + http.ssl_certfile + " (" +
                  take_tls_error() + ")");
  }
  return {};
}

/// HTTP/1.1 if the client offers it; a client that offers only other protocols is told that there is none.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                    unsigned int offered_bytes, void*) {
  static constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(&found, length, kHttp11, sizeof kHttp11, offered, offered_bytes);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Result<TlsContext> make_server_tls(const config::HttpOptions& http) {
  if (http.certificate_pem.empty()) return TlsContext();
  TlsContext context = make_tls_context();
  if (context == nullptr) return failure(Code::internal, "TLS cannot be set up: " + take_tls_error());
  Status status = use_certificates(context.get(), http);
  if (status.ok()) status = use_key(context.get(), http);
  if (!status.ok()) return status;
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  return context;
}

}  // namespace troupe::http
