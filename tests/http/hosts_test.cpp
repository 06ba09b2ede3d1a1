// Which names of the server a request may use, which pages may have it act, and which keys open the routes
// that control it.
#include "http/server/hosts.h"

#include <arpa/inet.h>

#include "http/server/client_identity.h"
#include "http/server/origins.h"
#include "http/support.h"

namespace troupe::http::test {
namespace {

TEST(HostOf, IsWithoutPortAndBracketsOrEmpty) {
  const std::pair<const char*, const char*> rows[] = {
      {"a", "a"},       {"a:1", "a"},          {"a:", "a"}, {"127.0.0.1:80", "127.0.0.1"},
      {"[::1]", "::1"}, {"[::1]:8180", "::1"}, {"", ""},    {":80", ""},
      {"a:b", ""},      {"a:1:2", ""},         {"::1", ""}, {"[::1", ""},
      {"[::1]x", ""},   {"[::1]:x", ""},       {"[]", ""},
  };
  for (const auto& [authority, host] : rows) EXPECT_EQ(host_of(authority), host) << authority;
}

TEST(AuthorityOf, IsOfTheAbsoluteFormAlone) {
  EXPECT_EQ(authority_of("http://a:1/p?q"), "a:1");
  EXPECT_EQ(authority_of("HTTPS://a"), "a");
  EXPECT_EQ(authority_of("http://a?q"), "a");
  for (const char* other : {"/", "/http://a/", "*", "a:1", "ftp://a/"})
    EXPECT_EQ(authority_of(other), "") << other;
}

TEST(Hosts, ServeTheirOwnNamesAndTheListedOnes) {
  const Hosts hosts({"0.0.0.0", "box"}, {"llm.example", "[fd00::7]", "10.0.0.9"});
  EXPECT_TRUE(hosts.listed());
  for (const char* own : {"localhost", "LocalHost:9", "localhost.", "127.0.0.1", "127.9.9.9:1", "[::1]:2",
                          "[::ffff:127.0.0.1]", "box", "BOX:80", "0.0.0.0:1", "192.0.2.1:5", "llm.example",
                          "LLM.example.:443", "[fd00::7]", "[fd00:0::7]:1", "10.0.0.9"}) {
    EXPECT_TRUE(hosts.serve(own, "192.0.2.1")) << own;
  }
  for (const char* other : {"", "evil.example", "localhost.evil.example", "evil.localhost",
                            "llm.example.evil", "x@localhost", "localhost:80@evil", "192.0.2.2", "[fd00::8]",
                            "*", "localhost evil", "127.0.0.1.evil.example", "2130706433"}) {
    EXPECT_FALSE(hosts.serve(other, "192.0.2.1")) << other;
  }
  EXPECT_FALSE(Hosts({}, {}).listed());
  EXPECT_TRUE(Hosts({}, {"*"}).serve("evil.example", ""));
}

TEST(Origins, ForeignAreThePagesOfOthers) {
  const Origins none({});
  EXPECT_FALSE(none.foreign("", "", "localhost:1")) << "no browser";
  EXPECT_FALSE(none.foreign("http://localhost:1", "", "localhost:1"));
  EXPECT_FALSE(none.foreign("http://LOCALHOST:1", "", "localhost:1"));
  EXPECT_FALSE(none.foreign("https://llm.example", "", "llm.example:443"));
  EXPECT_FALSE(none.foreign("http://llm.example:80", "", "llm.example"));
  EXPECT_FALSE(none.foreign("https://llm.example", "same-origin", "backend:8180"))
      << "a proxy has changed Host";
  EXPECT_FALSE(none.foreign("", "none", "localhost:1"));
  for (const char* origin :
       {"null", "http://localhost:2", "http://127.0.0.1:1", "http://evil.example",
        "http://localhost:1.evil.example", "file://", "localhost:1", "http://localhost"}) {
    EXPECT_TRUE(none.foreign(origin, "", "localhost:1")) << origin;
  }
  for (const char* site : {"cross-site", "Cross-Site", "same-site", "odd"})
    EXPECT_TRUE(none.foreign("", site, "localhost:1")) << site;
  const Origins some({"https://console.example"});
  EXPECT_FALSE(some.foreign("https://console.example", "cross-site", "localhost:1"));
  EXPECT_TRUE(some.foreign("https://other.example", "cross-site", "localhost:1"));
  EXPECT_FALSE(Origins({"*"}).foreign("https://other.example", "cross-site", "localhost:1"));
}

class HostsTest : public ServerTest {
 protected:
  /// The status of a request with these header lines, Host among them.
  Response ask(const std::string& line, const std::string& headers) {
    RawClient client(port);
    client.send(line + "\r\n" + headers + "\r\n");
    return client.receive();
  }
  int models(const std::string& host) {
    return ask("GET /v1/models HTTP/1.1", "Host: " + host + "\r\n").status;
  }
  Response act(const std::string& headers, const std::string& path = "/reset_prefix_cache") {
    return ask("POST " + path + " HTTP/1.1", "Host: localhost:" + std::to_string(port) + "\r\n" + headers);
  }
};

TEST_F(HostsTest, WithoutAKeyOnLoopbackHostMustNameTheServer) {
  start();
  answer_all();
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  for (const std::string& own : {std::string("localhost"), std::string("127.0.0.1:1234"),
                                 std::string("[::1]:9"), std::string(name.data()) + ":80"}) {
    EXPECT_EQ(models(own), 200) << own;
  }
  for (const char* other : {"evil.example", "evil.example:8180", "localhost.evil.example", ""}) {
    const Response response = ask("GET /v1/models HTTP/1.1", "Host: " + std::string(other) + "\r\n");
    EXPECT_EQ(response.status, 403) << other;
    EXPECT_EQ(response.error().at("param"), "Host");
    EXPECT_EQ(response.error().at("code"), "host_not_allowed");
    const std::string message = response.error().at("message");
    EXPECT_NE(message.find("\"" + std::string(other) + "\""), message.npos) << message;
    EXPECT_NE(message.find("--allowed-hosts"), message.npos) << message;
  }
  for (const char* path : {"/", "/health", "/nope", "/metrics", "/openapi.json"}) {
    EXPECT_EQ(ask("GET " + std::string(path) + " HTTP/1.1", "Host: evil.example\r\n").status, 403) << path;
  }
  EXPECT_EQ(ask("POST /v1/messages HTTP/1.1", "Host: evil.example\r\nContent-Length: 0\r\n").status, 403);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.0", "").status, 200);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.0", "Host: evil.example\r\n").status, 403);
  // The absolute form names a host as well; a proxy's header does not count.
  EXPECT_EQ(ask("GET http://localhost/v1/models HTTP/1.1", "Host: localhost\r\n").status, 200);
  EXPECT_EQ(ask("GET http://localhost/v1/models HTTP/1.1", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(ask("GET http://evil.example/v1/models HTTP/1.1", "Host: localhost\r\n").status, 403);
  EXPECT_EQ(ask("GET http://evil.example/v1/models HTTP/1.0", "").status, 403);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: evil.example\r\nX-Forwarded-Host: localhost\r\n").status,
            403);
}

TEST_F(HostsTest, AKeyOrAListReplacesTheCheckOfLoopback) {
  setup.http.api_keys = {"key"};
  start();
  answer_all();
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: llm.example\r\nx-api-key: key\r\n").status, 200);
  EXPECT_EQ(models("llm.example"), 401);
}

TEST_F(HostsTest, AListHoldsWithAKeyTooButNotForHealth) {
  setup.http.api_keys = {"key"};
  setup.http.allowed_hosts = {"llm.example"};
  start();
  answer_all();
  const std::string key = "x-api-key: key\r\n";
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: llm.example\r\n" + key).status, 200);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: localhost\r\n" + key).status, 200);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: evil.example\r\n" + key).status, 403);
  for (const char* probe : {"/health", "/health/ready", "/health/live", "/ping"}) {
    EXPECT_EQ(ask("GET " + std::string(probe) + " HTTP/1.1", "Host: 10.1.2.3:8180\r\n").status, 200) << probe;
  }
}

TEST_F(HostsTest, AnOpenMetricsPortOnLoopbackHasTheSameCheck) {
  setup.http.api_keys = {"key"};
  start(/*separate_metrics=*/true);
  answer_all();
  port = metrics_port;
  EXPECT_EQ(ask("GET /metrics HTTP/1.1", "Host: localhost:9090\r\n").status, 200);
  EXPECT_EQ(ask("GET /metrics HTTP/1.1", "Host: evil.example\r\n").status, 403);
}

TEST_F(HostsTest, NoPageOfAForeignOriginHasTheServerAct) {
  setup.http.allowed_origins = {"https://console.example"};
  start();
  answer_all();
  const std::string own = "Origin: http://localhost:" + std::to_string(port) + "\r\n";
  EXPECT_EQ(act("").status, 200) << "curl without a body";
  EXPECT_EQ(act("Content-Length: 0\r\n" + own + "Sec-Fetch-Site: same-origin\r\n").status, 200);
  EXPECT_EQ(act("Content-Length: 0\r\n" + own).status, 200);
  EXPECT_EQ(
      act("Content-Length: 0\r\nOrigin: https://console.example\r\nSec-Fetch-Site: cross-site\r\n").status,
      200);
  for (const char* foreign :
       {"Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n",
        "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\nContent-Type: text/plain\r\n"}) {
    const std::size_t before = backend.count();
    for (const char* path :
         {"/reset_prefix_cache", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
          "/v1/messages/count_tokens", "/tokenize", "/detokenize"}) {
      const Response response = act("Content-Length: 0\r\n" + std::string(foreign), path);
      EXPECT_EQ(response.status, 403) << path << " " << foreign;
      EXPECT_NE(response.body.find("--allowed-origins"), response.body.npos) << response.body;
    }
    EXPECT_EQ(backend.count(), before);
    EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: localhost\r\n" + std::string(foreign)).status, 200)
        << "CORS keeps it from the page";
  }
}

TEST_F(HostsTest, ControlNeedsAnAdminKey) {
  setup.http.api_keys = {"client"};
  setup.http.admin_api_keys = {"flag"};
  setup.http.file_admin_api_keys = {"old"};
  start();
  answer_all();
  EXPECT_EQ(act("").status, 401);
  EXPECT_EQ(act("x-api-key: wrong\r\n").status, 401);
  const Response refused = act("x-api-key: client\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.error().at("code"), "admin_key_required");
  EXPECT_NE(refused.body.find("--admin-api-key"), refused.body.npos);
  EXPECT_EQ(ask("GET /v1/troupe/events HTTP/1.1", "Host: a\r\nx-api-key: client\r\n").status, 403);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: a\r\nx-api-key: client\r\n").status, 200);
  for (const char* admin : {"x-api-key: flag\r\n", "Authorization: Bearer old\r\n",
                            "x-api-key: client\r\nAuthorization: Bearer flag\r\n"}) {
    EXPECT_EQ(act(admin).status, 200) << admin;
    EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Host: a\r\n" + std::string(admin)).status, 200) << admin;
    EXPECT_EQ(ask("GET /v1/troupe/events HTTP/1.1", "Host: a\r\n" + std::string(admin)).status, 200) << admin;
  }
  config::HttpOptions renewed = setup.http;
  renewed.file_admin_api_keys = {"new"};
  ASSERT_TRUE(server->renew(renewed).ok());
  EXPECT_EQ(act("x-api-key: new\r\n").status, 200);
  EXPECT_EQ(act("x-api-key: old\r\n").status, 401);
}

TEST_F(HostsTest, WithClientKeysAloneControlIsClosed) {
  setup.http.api_keys = {"client"};
  start();
  answer_all();
  const Response refused = act("x-api-key: client\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.error().at("code"), "no_admin_key");
  EXPECT_NE(refused.body.find("--admin-api-key"), refused.body.npos);
  EXPECT_EQ(act("").status, 401);
  EXPECT_EQ(backend.count(), 0u);
}

TEST_F(HostsTest, WithAdminKeysAloneTheApiIsOpen) {
  setup.http.admin_api_keys = {"admin"};
  start();
  answer_all();
  EXPECT_EQ(models("localhost"), 200);
  EXPECT_EQ(models("evil.example"), 403) << "no key is asked for";
  EXPECT_EQ(act("").status, 401);
  EXPECT_EQ(act("x-api-key: admin\r\n").status, 200);
}

TEST(ClientIdentity, IsTheKeyOrTheNetwork) {
  const ApiKeys keys({"one", "two"}, {"admin"});
  const std::string one = client_identity(&keys, "Bearer one", "", "10.0.0.1");
  EXPECT_TRUE(one.starts_with("key:"));
  EXPECT_EQ(one.size(), 20u);
  EXPECT_EQ(client_identity(&keys, "", "one", "10.0.0.2"), one);
  EXPECT_NE(client_identity(&keys, "", "two", "10.0.0.1"), one);
  EXPECT_TRUE(client_identity(&keys, "", "admin", "10.0.0.1").starts_with("key:"));
  EXPECT_EQ(client_identity(&keys, "Bearer wrong", "", "2001:db8:0:1::5"), "net:2001:db8:0:1::/64");
  EXPECT_EQ(client_identity(nullptr, "Bearer one", "", "::ffff:10.0.0.1"), "net:10.0.0.1");
}

}  // namespace
}  // namespace troupe::http::test
