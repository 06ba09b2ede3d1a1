// Files that clients name by URL: where a URL may lead, whatever its host, its redirects and its answers say.
#include "fetch/media_url.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "fetch/web_fixture.h"

namespace troupe::fetch {
namespace {

UrlRules rules(std::vector<std::string> hosts = {"127.0.0.1"}) {
  return {std::move(hosts), 1 << 20, std::chrono::seconds(5)};
}

struct Fetched {
  Status status;
  std::string bytes;
};

Fetched fetched(const std::string& url, const UrlRules& with = rules()) {
  Fetched out;
  out.status = fetch_file(url, with, [&](std::string_view bytes) -> Status {
    out.bytes += bytes;
    return {};
  });
  return out;
}

TEST(MediaUrl, AFileOfAnAllowedHostIsFetched) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = "bytes", .type = "image/png"}; });
  const Fetched got = fetched(web.url() + "/a.png");
  EXPECT_TRUE(got.status.ok()) << got.status.message;
  EXPECT_EQ(got.bytes, "bytes");
  EXPECT_EQ(web.asked().front().header("authorization"), "");
  EXPECT_EQ(web.asked().front().header("cookie"), "");
}

class NotAllowed : public ::testing::TestWithParam<const char*> {};

TEST_P(NotAllowed, IsRefusedBeforeAnythingIsAsked) {
  const Status status = check_url(GetParam(), rules({"good.example", "*.images.example", "127.0.0.1"}));
  EXPECT_EQ(status.code, Code::invalid_argument);
  EXPECT_EQ(status.reason, "url_not_allowed");
}

INSTANTIATE_TEST_SUITE_P(
    Urls, NotAllowed,
    ::testing::Values("", "x", "good.example/a", "ftp://good.example/a", "file:///etc/passwd",
                      "gopher://good.example/", "http://bad.example/", "http://good.example.bad/",
                      "http://bad.example/good.example", "http://good.example@bad.example/",
                      "http://user:word@good.example/", "http://images.example/", "http://badimages.example/",
                      "http://127.0.0.2/", "http://localhost/", "http://[::1]/", "http://2130706434/",
                      "http:///a", "http://good.example\\@bad/"));

TEST(MediaUrl, AllowedHosts) {
  const UrlRules with = rules({"Good.example", "*.images.example"});
  for (const char* url : {"http://good.example/a", "https://GOOD.example:8443/a?b#c", "http://good.example./",
                          "http://a.images.example/", "https://a.b.images.example/"})
    EXPECT_TRUE(check_url(url, with).ok()) << url;
}

// The name of the host is allowed, and its address is one of this machine: libcurl looks up no name below
// .localhost elsewhere.
TEST(MediaUrl, AnAddressThatIsNotPublicIsNotConnectedTo) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = "secret"}; });
  const std::string port = web.url().substr(web.url().rfind(':'));
  const Fetched got = fetched("http://images.localhost" + port + "/", rules({"images.localhost"}));
  EXPECT_EQ(got.status.reason, "url_not_allowed") << got.status.message;
  EXPECT_EQ(got.bytes, "");
  EXPECT_TRUE(web.asked().empty());
  EXPECT_TRUE(fetched("http://localhost" + port + "/", rules({"localhost"})).status.ok())
      << "the list has it itself";
}

TEST(MediaUrl, EveryRedirectIsChecked) {
  WebFixture inner([](const WebRequest&) { return WebReply{.body = "secret"}; });
  const std::string port = inner.url().substr(inner.url().rfind(':'));
  for (const std::string& target :
       {"http://localhost" + port, "http://[::1]" + port, std::string("file:///etc/passwd"),
        std::string("ftp://127.0.0.1/"), "http://2130706434" + port}) {
    WebFixture web(
        [&](const WebRequest&) { return WebReply{.status = 302, .headers = {"Location: " + target}}; });
    const Fetched got = fetched(web.url() + "/a");
    EXPECT_FALSE(got.status.ok()) << target;
    EXPECT_EQ(got.bytes, "") << target;
  }
  EXPECT_TRUE(inner.asked().empty());
}

TEST(MediaUrl, AnAllowedRedirectIsFollowedAndItsBodyAloneCounts) {
  WebFixture web([](const WebRequest& request) {
    return request.target == "/b" ? WebReply{.body = "second"}
                                  : WebReply{.status = 301, .body = "first", .headers = {"Location: /b"}};
  });
  const Fetched got = fetched(web.url() + "/a");
  EXPECT_TRUE(got.status.ok()) << got.status.message;
  EXPECT_EQ(got.bytes, "second");
}

TEST(MediaUrl, ACircleOfRedirectsEnds) {
  WebFixture web([](const WebRequest&) { return WebReply{.status = 302, .headers = {"Location: /a"}}; });
  EXPECT_EQ(fetched(web.url() + "/a").status.reason, "url_failed");
  EXPECT_LE(web.asked().size(), 6u);
}

TEST(MediaUrl, AFileThatIsTooLargeIsNotFetched) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = std::string(3000, 'x')}; });
  UrlRules small = rules();
  small.bytes = 1000;
  const Fetched got = fetched(web.url() + "/a", small);
  EXPECT_EQ(got.status.reason, "url_failed");
  EXPECT_LE(got.bytes.size(), 1000u);
}

TEST(MediaUrl, AHostThatAnswersAnErrorIsNamedAsThat) {
  WebFixture web([](const WebRequest&) { return WebReply{.status = 404, .body = "no"}; });
  const Fetched got = fetched(web.url() + "/a");
  EXPECT_EQ(got.status.reason, "url_failed");
  EXPECT_NE(got.status.message.find("404"), std::string::npos);
  EXPECT_EQ(got.bytes, "");
}

TEST(MediaUrl, ASlowHostIsGivenUp) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = "late"}; });
  UrlRules hasty = rules();
  hasty.time = std::chrono::milliseconds(0);
  EXPECT_EQ(fetched(web.url() + "/a", hasty).status.reason, "url_failed");
}

bool is_public_text(const char* text) {
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  six.sin6_family = AF_INET6;
  if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
    return is_public(reinterpret_cast<const sockaddr&>(four));
  EXPECT_EQ(inet_pton(AF_INET6, text, &six.sin6_addr), 1) << text;
  return is_public(reinterpret_cast<const sockaddr&>(six));
}

TEST(MediaUrl, PublicAddresses) {
  for (const char* text : {"8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111",
                           "64:ff9b::808:808", "2002:808:808::1"})
    EXPECT_TRUE(is_public_text(text)) << text;
  for (const char* text : {"0.0.0.0",
                           "10.1.2.3",
                           "100.64.0.1",
                           "127.0.0.1",
                           "127.9.9.9",
                           "169.254.169.254",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.168.1.1",
                           "198.18.0.1",
                           "224.0.0.1",
                           "255.255.255.255",
                           "::",
                           "::1",
                           "fe80::1",
                           "fc00::1",
                           "ff02::1",
                           "::ffff:127.0.0.1",
                           "::ffff:10.0.0.1",
                           "64:ff9b::7f00:1",
                           "2002:7f00:1::",
                           "2001:db8::1"})
    EXPECT_FALSE(is_public_text(text)) << text;
}

}  // namespace
}  // namespace troupe::fetch
