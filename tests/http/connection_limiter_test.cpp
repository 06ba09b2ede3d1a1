// Limits on connections, and how connections beyond them are told.
#include "http/server/connection_limiter.h"

#include "http/support.h"

namespace troupe::http::test {
namespace {

AddressSet networks(std::initializer_list<const char*> list) {
  AddressSet set;
  for (const char* network : list) EXPECT_TRUE(set.add(network).ok());
  return set;
}

int admitted(ConnectionLimiter& limiter, const Peer& peer, int tries) {
  int in = 0;
  for (int i = 0; i < tries; ++i) in += limiter.enter(peer).ok() ? 1 : 0;
  return in;
}

TEST(ConnectionLimiter, OneAddressMayHave256ConnectionsAndThisMachineAll) {
  const config::LimitOptions limits{.max_connections = 1000};
  ConnectionLimiter limiter(limits, networks({"10.0.0.0/8"}));
  EXPECT_EQ(admitted(limiter, limiter.recognise("203.0.113.5"), 300), 256);
  EXPECT_EQ(admitted(limiter, limiter.recognise("127.0.0.1"), 300), 300);
  EXPECT_EQ(admitted(limiter, limiter.recognise("10.1.2.3"), 300), 300);
  EXPECT_EQ(admitted(limiter, limiter.recognise("::1"), 300), 144);  // the rest of all
  EXPECT_EQ(limiter.inside(), 1000u);
  limiter.leave(limiter.recognise("203.0.113.5"));
  EXPECT_EQ(admitted(limiter, limiter.recognise("203.0.113.5"), 2), 1);
}

TEST(ConnectionLimiter, AGivenLimitIsThisMachinesTooButNoProxys) {
  const config::LimitOptions limits{.max_connections = 100, .max_connections_per_address = 2};
  ConnectionLimiter limiter(limits, networks({"10.0.0.0/8"}));
  EXPECT_EQ(admitted(limiter, limiter.recognise("127.0.0.1"), 5), 2);
  EXPECT_EQ(admitted(limiter, limiter.recognise("10.1.2.3"), 5), 5);
  const Status status = limiter.enter(limiter.recognise("127.0.0.1"));
  EXPECT_EQ(status.code, Code::overloaded);
  EXPECT_EQ(status.reason, "too_many_connections");
  EXPECT_NE(status.message.find("127.0.0.1"), std::string::npos);
  EXPECT_NE(status.message.find("--max-connections-per-address"), std::string::npos);
}

TEST(ConnectionLimiter, AddressesOfOneIpv6NetworkCountTogether) {
  const config::LimitOptions limits{.max_connections_per_address = 2};
  ConnectionLimiter limiter(limits, {});
  EXPECT_TRUE(limiter.enter(limiter.recognise("2001:db8:0:7::1")).ok());
  EXPECT_TRUE(limiter.enter(limiter.recognise("2001:db8:0:7:8::2")).ok());
  const Status status = limiter.enter(limiter.recognise("2001:db8:0:7:ffff::3"));
  EXPECT_EQ(status.reason, "too_many_connections");
  EXPECT_NE(status.message.find("2001:db8:0:7::/64"), std::string::npos) << status.message;
  EXPECT_TRUE(limiter.enter(limiter.recognise("2001:db8:0:8::1")).ok());
  limiter.leave(limiter.recognise("2001:db8:0:7::1"));
  EXPECT_TRUE(limiter.enter(limiter.recognise("2001:db8:0:7::9")).ok());

  EXPECT_TRUE(limiter.enter(limiter.recognise("::ffff:203.0.113.5")).ok());
  EXPECT_TRUE(limiter.enter(limiter.recognise("203.0.113.5")).ok());
  EXPECT_FALSE(limiter.enter(limiter.recognise("::ffff:203.0.113.5")).ok())
      << "the two forms of an IPv4 address are one";
  EXPECT_TRUE(limiter.enter(limiter.recognise("203.0.113.6")).ok());

  EXPECT_TRUE(limiter.begin_request("fd12::1").ok());
  EXPECT_TRUE(limiter.begin_request("fd12::2").ok());
  EXPECT_FALSE(limiter.begin_request("fd12::3").ok()) << "clients behind a proxy likewise";
  limiter.end_request("fd12::2");
  EXPECT_TRUE(limiter.begin_request("fd12::3").ok());
}

TEST(ConnectionLimiter, RequestsBehindAProxyAreCountedPerClient) {
  const config::LimitOptions limits{.max_connections_per_address = 2};
  ConnectionLimiter limiter(limits, {});
  EXPECT_TRUE(limiter.begin_request("203.0.113.5").ok());
  EXPECT_TRUE(limiter.begin_request("203.0.113.5").ok());
  EXPECT_FALSE(limiter.begin_request("203.0.113.5").ok());
  EXPECT_TRUE(limiter.begin_request("203.0.113.6").ok());
  limiter.end_request("203.0.113.5");
  EXPECT_TRUE(limiter.begin_request("203.0.113.5").ok());
}

TEST(ConnectionLimiter, TheClientIsTheLastAddressThatIsNoProxy) {
  const config::LimitOptions limits;
  const ConnectionLimiter limiter(limits, networks({"10.0.0.0/8", "fd00::/8"}));
  EXPECT_EQ(limiter.client_of("203.0.113.5"), "203.0.113.5");
  EXPECT_EQ(limiter.client_of("1.1.1.1, 203.0.113.5 ,10.0.0.1"),
            "203.0.113.5");  // the first is the client's own claim
  EXPECT_EQ(limiter.client_of("203.0.113.5:4711"), "203.0.113.5");
  EXPECT_EQ(limiter.client_of("[2001:db8::1]:80, fd00::1"), "2001:db8::1");
  EXPECT_EQ(limiter.client_of("2001:db8::1"), "2001:db8::1");
  EXPECT_EQ(limiter.client_of("10.0.0.2, 10.0.0.1"), "");
  EXPECT_EQ(limiter.client_of("203.0.113.5, unknown"), "");
  for (const char* odd : {"", ",", " , ", "[", "[]", ":", "1.2.3.4,,"})
    EXPECT_EQ(limiter.client_of(odd), "") << odd;
}

TEST_F(ServerTest, AConnectionBeyondTheLimitGets429AndMayAskForHealth) {
  setup.limits.max_connections = 3;
  start();
  answer_all();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 3; ++i) idle.push_back(std::make_unique<RawClient>(port));
  for (const auto& client : idle) {
    client->get("/v1/models");
    EXPECT_EQ(client->receive().status, 200);
  }
  for (const char* path : {"/v1/models", "/v1/chat/completions", "/metrics", "/nowhere"}) {
    RawClient extra(port);
    extra.get(path);
    const Response response = extra.receive();
    EXPECT_EQ(response.status, 429) << path;
    EXPECT_EQ(response.error().at("code"), "too_many_connections");
    EXPECT_TRUE(response.header("Retry-After").has_value());
    EXPECT_TRUE(extra.closed());
  }
  RawClient poster(port);
  poster.post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(poster.receive().status, 429);
  for (const char* path : {"/health", "/health/live", "/health/ready", "/ping"}) {
    RawClient probe(port);
    probe.get(path);
    EXPECT_EQ(probe.receive().status, 200) << path;
    EXPECT_TRUE(probe.closed());  // its place is for the next probe
  }
  EXPECT_EQ(server->connections(), 3u);
  EXPECT_EQ(backend.turned_away_count(), 9);
  idle.pop_back();
  for (int i = 0; i < 3000 && server->connections() > 2; ++i) std::this_thread::sleep_for(milliseconds(10));
  RawClient next(port);
  next.get("/v1/models");
  EXPECT_EQ(next.receive().status, 200);
}

TEST_F(ServerTest, IdleConnectionsBeyondTheLimitGiveWayToAProbe) {
  setup.limits.max_connections = 2;
  start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<RawClient>(port));
  RawClient probe(port);
  probe.get("/health");
  EXPECT_EQ(probe.receive().status, 200);
  // One that was the oldest of those beyond the limit was told why it is closed.
  const Response told = idle[2]->receive();
  EXPECT_EQ(told.status, 429);
  EXPECT_TRUE(idle[2]->closed());
  EXPECT_EQ(server->connections(), 2u);
}

TEST_F(ServerTest, AProxysClientsAreToldApart) {
  setup.http.trusted_proxies = {"127.0.0.0/8"};
  setup.limits.max_connections_per_address = 1;
  start();
  const std::string greedy = "X-Forwarded-For: 127.0.0.1, 203.0.113.5\r\n";
  RawClient first(port), second(port), third(port);
  first.post("/v1/completions", R"({"prompt":"x"})", greedy);
  ASSERT_TRUE(backend.wait_calls(1));
  second.post("/v1/completions", R"({"prompt":"x"})", "X-Forwarded-For: 198.51.100.1\r\n" + greedy);
  EXPECT_EQ(second.receive().status, 429);
  second.get("/health", greedy);  // the connection stays, and health is not counted
  EXPECT_EQ(second.receive().status, 200);
  second.post("/v1/completions", R"({"prompt":"x"})", "X-Forwarded-For: 203.0.113.6\r\n");
  ASSERT_TRUE(backend.wait_calls(2));
  deliver(backend.call(0).exchange, {.kind = Output::Kind::whole, .body = "{}"});
  EXPECT_EQ(first.receive().status, 200);
  third.post("/v1/completions", R"({"prompt":"x"})", greedy);  // its turn has come
  ASSERT_TRUE(backend.wait_calls(3));
  EXPECT_EQ(backend.turned_away_count(), 1);
}

TEST_F(ServerTest, ForwardedForIsNotBelievedFromOthers) {
  setup.limits.max_connections_per_address = 1;
  start();
  RawClient first(port), second(port);
  first.get("/health");
  EXPECT_EQ(first.receive().status, 200);
  second.get("/v1/models", "X-Forwarded-For: 203.0.113.6\r\n");
  EXPECT_EQ(second.receive().status, 429);
}

TEST_F(ServerTest, UnknownFieldsAreToldInAHeader) {
  start();
  answer_all();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"x","zebra":1,"evil\r\nSet-Cookie: a=\"b\"":2})");
  const Response warned = client.receive();
  EXPECT_EQ(warned.header("Warning"), "299 troupe \"without effect: zebra, evil??Set-Cookie:?a=?b?\"");
  EXPECT_EQ(warned.header("x-troupe-ignored"), "zebra, evil??Set-Cookie:?a=?b?");
  client.post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_FALSE(client.receive().header("Warning").has_value());
}

TEST_F(ServerTest, StrictRequestsRefusesUnknownFields) {
  setup.limits.strict_requests = true;
  start();
  answer_all();
  RawClient client(port);
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  const std::pair<const char*, std::string> bodies[] = {{"/v1/completions", R"("prompt":"x")"},
                                                        {"/v1/chat/completions", messages},
                                                        {"/v1/responses", R"("input":"x")"},
                                                        {"/v1/messages", messages + R"(,"max_tokens":1)"},
                                                        {"/tokenize", R"("prompt":"x")"}};
  for (const auto& [path, body] : bodies) {
    client.post(path, "{" + body + R"(,"zebra":1})");
    const Response response = client.receive();
    EXPECT_EQ(response.status, 400) << path;
    EXPECT_NE(response.body.find("There is no field \\\"zebra\\\""), std::string::npos) << response.body;
  }
  client.post("/v1/completions", R"({"prompt":"x","user":"known"})");
  EXPECT_EQ(client.receive().status, 200);
}

}  // namespace
}  // namespace troupe::http::test
