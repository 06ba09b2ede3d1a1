// The pages for people, and what browsers ask a server before they let other pages use it.
#include "http/pages/pages.h"

#include <string>
#include <vector>

#include "http/server/origins.h"
#include "http/server/request_handler.h"
#include "http/support.h"

namespace troupe::http::test {
namespace {

TEST(Pages, AreSmallAndEveryFileThatTheyLoadIsThere) {
  std::size_t bytes = 0;  // as they are sent to a browser
  for (const Page& page : pages()) {
    EXPECT_LT(page.gzip.size(), page.body.size()) << page.path;
    bytes += page.gzip.empty() ? page.body.size() : page.gzip.size();
    EXPECT_FALSE(page.body.empty()) << page.path;
    EXPECT_EQ(find_page(page.path), &page);
    // A reference is a path in quotes: in src, href and import.
    for (std::size_t at = 0; (at = page.body.find("\"/pages/", at)) != page.body.npos; ++at) {
      const std::string_view path = page.body.substr(at + 1, page.body.find('"', at + 1) - at - 1);
      EXPECT_NE(find_page(path), nullptr) << path << " in " << page.path;
    }
    for (std::size_t at = 0; (at = page.body.find("from \"./", at)) != page.body.npos; ++at) {
      const std::string_view name = page.body.substr(at + 8, page.body.find('"', at + 8) - at - 8);
      EXPECT_NE(find_page("/pages/" + std::string(name)), nullptr) << name << " in " << page.path;
    }
  }
  EXPECT_LE(bytes, 150u << 10);
}

TEST(Pages, HoldNothingThatTheirPolicyForbids) {
  for (const Page& page : pages()) {
    if (page.path == "/pages/katex.js") continue;  // can write HTML as well; the pages ask it for nodes
    for (const char* word :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\"", "<style",
          "onclick=\"", "javascript:", "src=\"http", "href=\"http", "@import", "url(http"}) {
      EXPECT_EQ(page.body.find(word), page.body.npos) << word << " in " << page.path;
    }
    if (page.content == Output::Content::html) {
      for (std::size_t at = 0; (at = page.body.find("<script", at)) != page.body.npos; ++at) {
        EXPECT_NE(page.body.substr(at, page.body.find('>', at) - at).find("src="), page.body.npos)
            << page.path;
      }
    }
  }
}

class PagesTest : public ServerTest {
 protected:
  Response ask(std::string_view method, std::string_view path, std::string_view extra = {}) {
    RawClient client(port);
    client.get(path, extra, method);
    return client.receive(method == "HEAD" || method == "OPTIONS");
  }
};

TEST_F(PagesTest, AreServedWithoutAKeyAndWithAStrictPolicy) {
  setup.http.api_keys = {"secret"};
  start();
  for (const auto& [path, type] :
       std::vector<std::pair<std::string, std::string>>{{"/", "text/html; charset=utf-8"},
                                                        {"/topology", "text/html; charset=utf-8"},
                                                        {"/docs", "text/html; charset=utf-8"},
                                                        {"/pages/pages.css", "text/css; charset=utf-8"},
                                                        {"/pages/chat.js", "text/javascript; charset=utf-8"},
                                                        {"/pages/icon.svg", "image/svg+xml"}}) {
    const Response response = ask("GET", path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_EQ(response.header("Content-Type"), type);
    EXPECT_EQ(response.header("X-Content-Type-Options"), "nosniff");
    const std::string policy = response.header("Content-Security-Policy").value_or("");
    EXPECT_EQ(policy.find("unsafe"), policy.npos);
    for (const char* part : {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
                             "require-trusted-types-for 'script'"}) {
      EXPECT_NE(policy.find(part), policy.npos) << part;
    }
    const Response head = ask("HEAD", path);
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.header("Content-Length"), std::to_string(response.body.size()));
  }
  for (const char* guarded :
       {"/v1/models", "/openapi.json", "/v1/troupe/events", "/nope", "/pages/nope.js"}) {
    EXPECT_EQ(ask("GET", guarded).status, 401) << guarded;
  }
  EXPECT_EQ(backend.count(), 0u);
}

TEST_F(PagesTest, AreNotSentAgainWhenTheBrowserHasThem) {
  start();
  const Response first = ask("GET", "/");
  const std::string etag = first.header("ETag").value_or("");
  ASSERT_EQ(etag.size(), 34u);
  EXPECT_EQ(first.header("Cache-Control"), "no-cache");
  RawClient client(port);
  for (const std::string& known : {etag, "W/" + etag, "\"x\", " + etag}) {
    client.get("/", "If-None-Match: " + known + "\r\n");
    const Response again = client.receive(true);
    EXPECT_EQ(again.status, 304);
    EXPECT_EQ(again.header("ETag"), etag);
    EXPECT_FALSE(again.header("Content-Length").has_value());
  }
  client.get("/", "If-None-Match: \"another\"\r\n");  // no body of the 304s may be in the way
  EXPECT_EQ(client.receive().body, first.body);
}

TEST_F(PagesTest, AreSentCompressedToWhoReadsThat) {
  start();
  const Response plain = ask("GET", "/pages/chat.js");
  EXPECT_FALSE(plain.header("Content-Encoding").has_value());
  EXPECT_EQ(plain.header("Vary"), "Accept-Encoding");
  const Response packed = ask("GET", "/pages/chat.js", "Accept-Encoding: br, gzip;q=0.5\r\n");
  EXPECT_EQ(packed.header("Content-Encoding"), "gzip");
  EXPECT_EQ(packed.header("Vary"), "Accept-Encoding");
  EXPECT_EQ(packed.header("Content-Type"), plain.header("Content-Type"));
  EXPECT_LT(packed.body.size(), plain.body.size());
  EXPECT_EQ(packed.body.substr(0, 2), "\x1f\x8b");
  const std::string etag = packed.header("ETag").value_or("");
  EXPECT_NE(etag, plain.header("ETag"));
  // A form that the client has, but does not ask for, is not what it gets.
  EXPECT_EQ(ask("GET", "/pages/chat.js", "If-None-Match: " + etag + "\r\n").status, 200);
  RawClient client(port);
  client.get("/pages/chat.js", "Accept-Encoding: gzip\r\nIf-None-Match: " + etag + "\r\n");
  EXPECT_EQ(client.receive(true).status, 304);
}

TEST(Encodings, GzipIsTakenWhenItIsNamedWithAWeight) {
  for (const char* yes :
       {"gzip", "GZIP", "br, gzip", "x-gzip", "*", "gzip;q=0.1", "identity, gzip ; q=1", "*;q=0, gzip"}) {
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  }
  for (const char* no : {"", "br", "identity", "gzip;q=0", "gzip; q=0.000", "*;q=0", "*, gzip;q=0", "agzip",
                         "gzipped", ",,"}) {
    EXPECT_FALSE(accepts_gzip(no)) << no;
  }
}

TEST_F(PagesTest, AreNotOnAMetricsPort) {
  start(/*separate_metrics=*/true);
  RawClient client(metrics_port);
  for (const char* path : {"/", "/topology", "/v1/troupe/events"}) {
    client.get(path);
    EXPECT_EQ(client.receive().status, 404) << path;
  }
}

TEST_F(PagesTest, OptionsSayWhatEveryRouteTakesAndNeedNoKey) {
  setup.http.api_keys = {"secret"};
  start();
  for (const auto& [path, allow] :
       std::vector<std::pair<std::string, std::string>>{{"/v1/chat/completions", "POST, OPTIONS"},
                                                        {"/v1/models/x", "GET, HEAD, OPTIONS"},
                                                        {"/ping", "GET, HEAD, POST, OPTIONS"},
                                                        {"/", "GET, HEAD, OPTIONS"},
                                                        {"*", "GET, HEAD, POST, OPTIONS"}}) {
    const Response response = ask("OPTIONS", path);
    EXPECT_EQ(response.status, 204) << path;
    EXPECT_EQ(response.header("Allow"), allow);
    EXPECT_FALSE(response.header("Content-Length").has_value());
    EXPECT_FALSE(response.header("Access-Control-Allow-Origin").has_value());
  }
  EXPECT_EQ(ask("OPTIONS", "/nope").status, 401);
}

TEST_F(PagesTest, OtherOriginsMayReadAnswersWhenTheyAreAllowed) {
  setup.http.api_keys = {"secret"};
  setup.http.allowed_origins = {"https://a.example", "http://b.example:8080"};
  start();
  answer_all();
  const std::string preflight =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
      "authorization,content-type,x-stainless-os\r\n";
  Response response = ask("OPTIONS", "/v1/chat/completions", "Origin: https://a.example\r\n" + preflight);
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.header("Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(response.header("Access-Control-Allow-Methods"), "POST, OPTIONS");
  EXPECT_EQ(response.header("Access-Control-Allow-Headers"), "authorization,content-type,x-stainless-os");
  EXPECT_EQ(response.header("Vary"), "Origin");
  response = ask("OPTIONS", "/v1/chat/completions", "Origin: https://evil.example\r\n" + preflight);
  EXPECT_EQ(response.status, 204);
  EXPECT_FALSE(response.header("Access-Control-Allow-Origin").has_value());
  EXPECT_FALSE(response.header("Access-Control-Allow-Methods").has_value());
  EXPECT_EQ(response.header("Vary"), "Origin");
  // Answers and errors alike, so that a script sees why.
  EXPECT_EQ(ask("GET", "/v1/models", "Origin: http://b.example:8080\r\nAuthorization: Bearer secret\r\n")
                .header("Access-Control-Allow-Origin"),
            "http://b.example:8080");
  response = ask("GET", "/v1/models", "Origin: https://a.example\r\n");
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(response.header("Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_FALSE(ask("GET", "/v1/models", "Origin: https://evil.example\r\n")
                   .header("Access-Control-Allow-Origin")
                   .has_value());
}

TEST_F(PagesTest, TheStreamOfEventsIsHandedOverWithTheRequestToFollow) {
  setup.http.admin_api_keys = {"secret"};
  start();
  const std::string key = "Authorization: Bearer secret\r\n";
  RawClient client(port);
  client.get("/v1/troupe/events?x=1&request=chatcmpl%2Dab", key);
  ASSERT_TRUE(backend.wait_calls(1));
  const auto info = std::get<InfoRequest>(backend.call(0).body);
  EXPECT_EQ(info.kind, InfoRequest::Kind::events);
  EXPECT_EQ(info.name, "chatcmpl-ab");
  deliver(backend.call(0).exchange, {.body = "event: opening\ndata: {}\n\n"});
  deliver(backend.call(0).exchange, {.kind = Output::Kind::end});
  const Response response = client.receive();
  EXPECT_EQ(response.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.body, "event: opening\ndata: {}\n\n");
  const Response head = ask("HEAD", "/v1/troupe/events", key);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_FALSE(head.header("Content-Length").has_value());
  RawClient other(port);  // an id that cannot be one is no id
  other.get("/v1/troupe/events?request=%00", key);
  ASSERT_TRUE(backend.wait_calls(2));
  EXPECT_EQ(std::get<InfoRequest>(backend.call(1).body).name, "");
}

TEST(Origins, AllowWhatIsListedAndNothingThatLooksLikeIt) {
  const Origins some({"https://a.example"});
  EXPECT_EQ(some.answer_to("https://a.example"), "https://a.example");
  for (const char* other :
       {"", "https://a.example.evil", "https://a.exampl", "http://a.example", "null", "*"}) {
    EXPECT_EQ(some.answer_to(other), "") << other;
  }
  EXPECT_TRUE(some.vary());
  const Origins all({"*"});
  EXPECT_EQ(all.answer_to("https://x"), "*");
  EXPECT_FALSE(all.vary());
  EXPECT_EQ(Origins({}).answer_to("https://x"), "");
}

TEST(Origins, HeadersOfAPreflightAreNamesOrNothing) {
  EXPECT_EQ(allowed_headers("authorization, x-api-key"), "authorization, x-api-key");
  for (const std::string& odd :
       {std::string("a:b"), std::string("a\"b"), std::string("<x>"), std::string(3000, 'a')}) {
    EXPECT_EQ(allowed_headers(odd), "");
  }
}

TEST(Query, ValuesAreFoundByNameAndDecoded) {
  EXPECT_EQ(query_value("/p?request=a%20b", "request"), "a b");
  EXPECT_EQ(query_value("/p?xrequest=1&request=2&request=3", "request"), "2");
  EXPECT_EQ(query_value("/p?request", "request"), "");
  EXPECT_EQ(query_value("/p", "request"), "");
  EXPECT_EQ(query_value("/p?request=%zz%4", "request"), "%zz%4");
}

}  // namespace
}  // namespace troupe::http::test
