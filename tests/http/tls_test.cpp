// TLS between the server and the client's side of the project, with certificates made here.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <fstream>

#include "http/client/client.h"
#include "http/client/tls_client.h"
#include "http/server/tls_server.h"
#include "http/support.h"
#include "support/temp_directory.h"

namespace troupe::http::test {
namespace {

struct Pem {
  std::string certificate;
  std::string key;
};

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  std::string text(bytes, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

/// A certificate that vouches for itself and is valid for an hour.
Pem make_pem(const std::string& names) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1,
                             0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* others = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
  X509_add_ext(certificate, others, -1);
  X509_EXTENSION_free(others);
  X509_sign(certificate, key, EVP_sha256());
  BIO* out = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(out, certificate);
  BIO* secret = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(secret, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {text_of(out), text_of(secret)};
}

class TlsTest : public ServerTest {
 protected:
  void start_tls(const Pem& pem) {
    setup.http.certificate_pem = pem.certificate;
    setup.http.private_key_pem = pem.key;
    start();
  }
  /// A client that trusts this certificate alone.
  http::Client trusting(const Pem& pem, const std::string& api_key = {}) const {
    const std::string path = (directory_.path() / "ca.pem").string();
    std::ofstream(path, std::ios::trunc) << pem.certificate;
    const auto tls = make_client_tls({.ca_file = path});
    EXPECT_TRUE(tls.ok()) << tls.status().message;
    return http::Client({.port = port, .api_key = api_key, .tls = *tls, .idle_timeout_ms = 20'000});
  }

  const troupe::test::TempDirectory directory_;
  const Pem own_ = make_pem("IP:127.0.0.1");
};

TEST_F(TlsTest, RequestsAndAnswersOfManyRecords) {
  start_tls(own_);
  backend.script = [this](Exchange exchange) {
    deliver(exchange, {.kind = Output::Kind::whole, .body = std::string(3 << 20, 'x')});
  };
  http::Client client = trusting(own_);
  const auto answer =
      client.request("POST", "/v1/completions", R"({"prompt":")" + std::string(1 << 20, 'a') + "\"}");
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, std::string(3 << 20, 'x'));
}

TEST_F(TlsTest, AReaderThatPausesGetsEverything) {
  start_tls(own_);
  std::atomic<bool> ended{false};
  std::thread writer;
  backend.script = [&](Exchange exchange) {
    writer = std::thread([&, exchange] {
      for (int i = 0; i < 60; ++i) {
        deliver(exchange, {.body = "data: " + std::string(16000, 'y') + "\n\n"});
        std::this_thread::sleep_for(milliseconds(1));
      }
      deliver(exchange, {.body = "data: [DONE]\n\n"});
      deliver(exchange, {.kind = Output::Kind::end});
      ended = true;
    });
  };
  int events = 0;
  const auto answer =
      trusting(own_).stream("/v1/completions", R"({"prompt":"x","stream":true})", [&](std::string_view data) {
        if (events++ == 0) {
          for (int i = 0; i < 2000 && !ended; ++i) std::this_thread::sleep_for(milliseconds(5));
        }
        return data == std::string(16000, 'y');
      });
  if (writer.joinable()) writer.join();
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(events, 60);
}

TEST_F(TlsTest, RenewedCredentialsAreForNewConnectionsAndRequests) {
  setup.http.api_keys = {"flag"};
  setup.http.file_api_keys = {"old"};
  start_tls(own_);
  answer_all();
  EXPECT_EQ(trusting(own_, "old").request("GET", "/v1/models")->status, 200);
  const Pem fresh = make_pem("IP:127.0.0.1");
  config::HttpOptions renewed = setup.http;
  renewed.private_key_pem = fresh.key;
  EXPECT_FALSE(server->renew(renewed).ok());  // a key of another certificate: nothing changes
  EXPECT_EQ(trusting(own_, "old").request("GET", "/v1/models")->status, 200);
  renewed.certificate_pem = fresh.certificate;
  renewed.file_api_keys = {"new"};
  ASSERT_TRUE(server->renew(renewed).ok());
  EXPECT_EQ(trusting(fresh, "new").request("GET", "/v1/models")->status, 200);
  EXPECT_EQ(trusting(fresh, "flag").request("GET", "/v1/models")->status, 200);
  EXPECT_EQ(trusting(fresh, "old").request("GET", "/v1/models")->status, 401);
  EXPECT_EQ(trusting(own_, "new").request("GET", "/v1/models").status().code, Code::unauthorized);
}

TEST_F(TlsTest, AClientChecksNameAndAuthority) {
  start_tls(make_pem("DNS:elsewhere"));
  const auto named =
      http::Client({.port = port, .tls = *make_client_tls({.insecure = true})}).request("GET", "/health");
  ASSERT_TRUE(named.ok()) << named.status().message;
  EXPECT_EQ(named->status, 200);
  const Pem here{setup.http.certificate_pem, {}};
  const Status other_name = trusting(here).request("GET", "/health").status();
  EXPECT_NE(other_name.message.find("IP address mismatch"), std::string::npos) << other_name.message;
  const Status other_authority = trusting(own_).request("GET", "/health").status();
  EXPECT_NE(other_authority.message.find("certificate"), std::string::npos) << other_authority.message;
  EXPECT_FALSE(backend.handshake_failure().empty());
}

TEST_F(TlsTest, AClientWithoutTlsIsToldAndCounted) {
  start_tls(own_);
  RawClient plain(port);
  plain.get("/health");
  const Response response = plain.receive();
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("https://"), std::string::npos);
  EXPECT_TRUE(plain.closed());
  EXPECT_EQ(backend.handshake_failure(), "http request");
  const auto lost = http::Client({.port = port}).request("GET", "/health");
  EXPECT_EQ(lost->status, 400);
}

TEST_F(TlsTest, BrokenHandshakesHurtNobody) {
  start_tls(own_);
  answer_all();
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\xff\xff"), std::string("\x16\x03\x01\x00\x04zzzz"),
        std::string(70000, '\0'), std::string("\x16"), std::string()}) {
    RawClient broken(port);
    broken.send(bytes);
    if (bytes.size() > 5) {
      EXPECT_TRUE(broken.closed());
    }
  }
  EXPECT_EQ(trusting(own_).request("GET", "/v1/models")->status, 200);
}

TEST_F(TlsTest, TheMetricsPortStaysPlain) {
  setup.http.certificate_pem = own_.certificate;
  setup.http.private_key_pem = own_.key;
  start(/*separate_metrics=*/true);
  RawClient probe(metrics_port);
  probe.get("/health");
  EXPECT_EQ(probe.receive().status, 200);
}

TEST(ServerUrl, NamesSchemeHostAndPort) {
  const auto place = [](const std::string& url) {
    const auto parsed = parse_server_url(url);
    if (!parsed.ok()) return parsed.status().message.substr(0, 5);
    return (parsed->tls ? "tls " : "") + parsed->host + " " + std::to_string(parsed->port);
  };
  EXPECT_EQ(place("http://gpu7"), "gpu7 80");
  EXPECT_EQ(place("https://gpu7"), "tls gpu7 443");
  EXPECT_EQ(place("https://gpu7:8443/v1/"), "tls gpu7 8443");
  EXPECT_EQ(place("http://[::1]:81"), "::1 81");
  EXPECT_EQ(place("https://[fd00::1]"), "tls fd00::1 443");
  for (const char* wrong : {"", "gpu7", "ftp://a", "http://", "http://:80", "http://a:0", "http://a:65536",
                            "http://a:8x", "http://[::1", "http://u@a", "http://a/path", "http://a?b"}) {
    EXPECT_EQ(place(wrong), "--url") << wrong;
  }
}

}  // namespace
}  // namespace troupe::http::test
