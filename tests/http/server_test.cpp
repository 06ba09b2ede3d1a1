// The server over loopback: routes, order, keys, departures, draining.
#include "http/server/server.h"

#include <set>
#include <thread>

#include "http/support.h"

namespace troupe::http::test {
namespace {

TEST_F(ServerTest, NamesThePartThatStandsStill) {
  start();
  RawClient client(port);
  const auto status_of = [&](const char* path) {
    client.get(path);
    const Response response = client.receive();
    EXPECT_EQ(json::parse(response.body).at("silent"), backend.silent.load());
    return response.status;
  };
  backend.silent = "worker-0";
  EXPECT_EQ(status_of("/health/ready"), 503);
  EXPECT_EQ(status_of("/health/live"), 200);
  backend.live = false;
  backend.silent = "scheduler";
  EXPECT_EQ(status_of("/health/ready"), 503);
  EXPECT_EQ(status_of("/health/live"), 503);
}

TEST_F(ServerTest, AnswersHealthFromTheSnapshot) {
  start();
  RawClient client(port);
  for (const auto& [state, status] :
       std::vector<std::pair<Health::State, int>>{{Health::State::loading, 503},
                                                  {Health::State::ready, 200},
                                                  {Health::State::draining, 503},
                                                  {Health::State::restarting, 503}}) {
    backend.state = state;
    for (const char* path : {"/health", "/health/ready", "/ping"}) {
      client.get(path);
      const Response response = client.receive();
      EXPECT_EQ(response.status, status) << path;
      EXPECT_EQ(json::parse(response.body).at("status"), std::string(to_string(state)));
      EXPECT_EQ(response.header("Retry-After").has_value(), status == 503);
    }
    client.get("/health/live");
    EXPECT_EQ(client.receive().status, 200);
  }
  backend.state = Health::State::ready;
  client.send("POST /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200);
  client.get("/health", {}, "HEAD");
  const Response head = client.receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "18");
  client.get("/health/live");  // no body of the HEAD may be in the way
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(backend.count(), 0u);
}

TEST_F(ServerTest, RequestsWithoutASeedDrawDifferentOnes) {
  start();
  std::set<std::uint64_t> seeds;
  for (std::size_t i = 0; i < 3; ++i) {
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":"x"})");
    ASSERT_TRUE(backend.wait_calls(i + 1));
    seeds.insert(std::get<Request>(backend.call(i).body).generation.sampling.seed);
  }
  EXPECT_EQ(seeds.size(), 3u);
}

TEST_F(ServerTest, HandsACallOverAndWritesItsAnswer) {
  start();
  RawClient client(port);
  client.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"seed":7,"zebra":1})",
              "x-request-id: abc-1\r\n");
  ASSERT_TRUE(backend.wait_calls(1));
  const Call call = backend.call(0);
  EXPECT_EQ(call.request_id, "abc-1");
  EXPECT_EQ(call.ignored_fields, std::vector<std::string>{"zebra"});
  const auto& request = std::get<Request>(call.body);
  EXPECT_EQ(request.generation.sampling.seed, 7u);
  EXPECT_EQ(request.answer.id, "chatcmpl-abc-1");
  EXPECT_GT(request.answer.created_s, 1'700'000'000);
  EXPECT_EQ(server->active(), 1u);
  deliver(call.exchange,
          {.kind = Output::Kind::whole, .status = 200, .body = "{\"a\":1}", .headers = {{"X-A", "b"}}});
  const Response response = client.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "{\"a\":1}");
  EXPECT_EQ(response.header("x-request-id"), "abc-1");
  EXPECT_EQ(response.header("Content-Type"), "application/json");
  EXPECT_EQ(response.header("X-A"), "b");
  EXPECT_TRUE(response.header("Date").has_value());
  ASSERT_TRUE(backend.wait_status(200));
  EXPECT_TRUE(becomes_active(0));
}

TEST_F(ServerTest, MakesARequestIdWhereTheGivenOneIsNotSane) {
  start();
  answer_all();
  RawClient client(port);
  std::vector<std::string> ids;
  for (const std::string& extra : {std::string(), "x-request-id: a b\r\n" + std::string(),
                                   "x-request-id: " + std::string(200, 'a') + "\r\n"}) {
    client.get("/v1/models", extra);
    const Response response = client.receive();
    ASSERT_EQ(response.status, 200);
    ids.push_back(*response.header("x-request-id"));
    EXPECT_EQ(ids.back().size(), 32u);
  }
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(ServerTest, AnAnswerIsActiveUntilItsLastByteIsSent) {
  start();
  RawClient client(port, 4096);
  client.post("/v1/chat/completions", kChat);
  ASSERT_TRUE(backend.wait_calls(1));
  server->drain();
  const std::string body(12 << 20, 'x');  // more than the sockets' buffers hold
  deliver(backend.call(0).exchange, {.kind = Output::Kind::whole, .body = body});
  ASSERT_TRUE(backend.wait_status(200));
  EXPECT_EQ(server->active(), 1u);  // who waits for 0 before stopping would cut it off
  const Response response = client.receive();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.body.size(), body.size());
  EXPECT_TRUE(becomes_active(0));
}

TEST_F(ServerTest, Http10GetsAnUnchunkedStreamThatEndsWithTheConnection) {
  start();
  RawClient client(port);
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 28\r\n\r\n"
      R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  deliver(backend.call(0).exchange, {.body = "data: 1\n\n"});
  deliver(backend.call(0).exchange, {.kind = Output::Kind::end});
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(client.rest().ends_with("\r\n\r\ndata: 1\n\n")) << client.rest();
  EXPECT_EQ(client.rest().find("chunked"), std::string::npos);
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  answer_all();
  RawClient client(port);
  std::string burst;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = "x-request-id: r" + std::to_string(i) + "\r\n";
    if (i % 2 == 0) {
      burst += "GET /health HTTP/1.1\r\nHost: localhost\r\n" + id + "\r\n";
    } else {
      burst += "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
               id + "Content-Length: " + std::to_string(kChat.size()) + "\r\n\r\n" + kChat;
    }
  }
  std::thread sender([&] { client.send(burst); });
  for (int i = 0; i < 1000; ++i) {
    const Response response = client.receive();
    ASSERT_EQ(response.status, 200) << i;
    ASSERT_EQ(response.header("x-request-id"), "r" + std::to_string(i));
  }
  sender.join();
  EXPECT_EQ(backend.count(), 500u);
}

TEST_F(ServerTest, ReadsARequestThatComesByteByByte) {
  start();
  answer_all();
  RawClient client(port);
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\n" +
      kChat.substr(0, 5) + "\r\n" + "28\r\n" + kChat.substr(5) + "\r\n0\r\n\r\n";
  ASSERT_EQ(kChat.size(), 45u);
  for (const char c : request) {
    client.send({&c, 1});
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(to_text(std::get<Request>(backend.call(0).body).source.conversation.messages),
            R"([{"role":"user","content":"hi"}])");
}

TEST_F(ServerTest, HeadersAsLongAsTheirLimitPassWhateverItIs) {
  setup.limits.max_header_bytes = 300 << 10;
  start();
  RawClient client(port);
  std::string headers;
  for (int i = 0; i < 5; ++i) headers += "X: " + std::string(58 << 10, 'x') + "\r\n";
  client.get("/health", headers);
  EXPECT_EQ(client.receive().status, 200);
  client.get("/health", "X: " + std::string(70 << 10, 'x') + "\r\n");
  EXPECT_EQ(client.receive().error().at("code"), "header_too_large");
}

TEST_F(ServerTest, AnswersExpectContinue) {
  start();
  answer_all();
  RawClient client(port);
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 45\r\n\r\n");
  ASSERT_TRUE(client.fill_some());
  EXPECT_EQ(client.rest(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send(kChat);
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(ServerTest, CancelsWhenTheClientLeavesBeforeOrDuringItsAnswer) {
  start();
  {
    RawClient client(port);
    client.post("/v1/chat/completions", kChat);
    ASSERT_TRUE(backend.wait_calls(1));
    client.close();
    ASSERT_TRUE(backend.wait_cancelled(1));
  }
  {
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":"x","stream":true})");
    ASSERT_TRUE(backend.wait_calls(2));
    deliver(backend.call(1).exchange, {.body = "data: 1\n\n"});
    ASSERT_TRUE(client.fill_some());
    client.close();
    ASSERT_TRUE(backend.wait_cancelled(2));
  }
  EXPECT_EQ(backend.cancelled()[0], backend.call(0).exchange);
  EXPECT_EQ(backend.cancelled()[1], backend.call(1).exchange);
  EXPECT_TRUE(backend.wait_status(499));
  EXPECT_EQ(server->active(), 0u);
  deliver(backend.call(1).exchange, {.body = "data: 2\n\n"});  // nobody is there any more
  expect_alive();
}

TEST_F(ServerTest, CutsOffAReaderThatStops) {
  setup.limits.write_timeout_s = 1;
  setup.limits.max_stream_buffer_bytes = 64 << 20;
  start();
  RawClient client(port, 4096);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  for (int i = 0; i < 40; ++i) deliver(backend.call(0).exchange, {.body = std::string(100 << 10, 'x')});
  EXPECT_TRUE(backend.wait_cancelled(1));
}

TEST_F(ServerTest, AReaderThatIsOnlySlowGetsEverything) {
  start();
  RawClient client(port, 4096);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  for (int i = 0; i < 8; ++i)
    deliver(backend.call(0).exchange, {.body = std::string(100 << 10, static_cast<char>('a' + i))});
  deliver(backend.call(0).exchange, {.kind = Output::Kind::end});
  std::this_thread::sleep_for(milliseconds(300));
  const Response response = client.receive();
  ASSERT_TRUE(response.complete);
  ASSERT_EQ(response.body.size(), std::size_t{800} << 10);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(response.body[static_cast<std::size_t>(i) * (100 << 10)], 'a' + i);
}

TEST_F(ServerTest, RefusesGenerationUntilReadyButShowsTheModels) {
  start();
  answer_all();
  RawClient client(port);
  backend.state = Health::State::loading;
  client.post("/v1/chat/completions", kChat);
  const Response response = client.receive();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.error().at("code"), "loading");
  EXPECT_TRUE(response.header("Retry-After").has_value());
  EXPECT_TRUE(response.header("retry-after-ms").has_value());
  client.get("/v1/models");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(backend.count(), 1u);
  backend.state = Health::State::restarting;
  client.post("/v1/chat/completions", kChat);
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(backend.count(), 2u);
}

TEST_F(ServerTest, DrainsRunningRequestsAndRefusesNewOnes) {
  start();
  RawClient idle(port);
  idle.get("/health");
  EXPECT_EQ(idle.receive().status, 200);
  RawClient busy(port);
  busy.post("/v1/chat/completions", kChat);
  ASSERT_TRUE(backend.wait_calls(1));
  server->drain();
  EXPECT_TRUE(idle.closed());
  RawClient late(port);
  late.post("/v1/chat/completions", kChat);
  const Response refused = late.receive();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.error().at("code"), "draining");
  EXPECT_EQ(refused.header("Connection"), "close");
  RawClient probe(port);
  probe.get("/health/ready");
  EXPECT_EQ(probe.receive().status, 503);
  EXPECT_EQ(server->active(), 1u);
  deliver(backend.call(0).exchange, {.kind = Output::Kind::whole, .body = "{}"});
  const Response response = busy.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.header("Connection"), "close");
  EXPECT_TRUE(busy.closed());
  EXPECT_EQ(server->active(), 0u);
}

TEST_F(ServerTest, StoppingCancelsWhatIsActive) {
  start();
  RawClient client(port);
  client.post("/v1/chat/completions", kChat);
  ASSERT_TRUE(backend.wait_calls(1));
  server->stop();
  EXPECT_EQ(backend.cancelled().size(), 1u);
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(server->connections(), 0u);
  deliver(backend.call(0).exchange, {.body = "data: 1\n\n"});
}

TEST_F(ServerTest, BoundsConnectionsPerAddressAndForgetsClosedOnes) {
  setup.limits.max_connections_per_address = 3;
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->get("/health");
    EXPECT_EQ(clients.back()->receive().status, 200);
  }
  RawClient extra(port);
  EXPECT_EQ(extra.receive().status, 429);  // also when it asks nothing
  EXPECT_TRUE(extra.closed());
  clients.pop_back();
  for (int i = 0; i < 3000 && server->connections() > 2; ++i) std::this_thread::sleep_for(milliseconds(10));
  expect_alive();
}

TEST_F(ServerTest, SpreadsConnectionsOverThreadsAndDeliversToTheRightOne) {
  setup.listen_fd = listen_on_loopback(&port);
  setup.http.io_threads = 3;
  server = std::make_unique<Server>(setup, backend);
  ASSERT_TRUE(server->start().ok());
  ASSERT_EQ(server->io_threads(), 3u);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 9; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->post("/v1/chat/completions", kChat, "x-request-id: r" + std::to_string(i) + "\r\n");
    ASSERT_TRUE(backend.wait_calls(static_cast<std::size_t>(i) + 1));
  }
  std::vector<int> per_thread(3);
  for (int i = 0; i < 9; ++i) {
    const Call call = backend.call(static_cast<std::size_t>(i));
    ++per_thread.at(call.exchange.io);
    deliver(call.exchange, {.kind = Output::Kind::whole, .body = call.request_id});
  }
  EXPECT_EQ(per_thread, (std::vector<int>{3, 3, 3}));
  for (int i = 0; i < 9; ++i)
    EXPECT_EQ(clients[static_cast<std::size_t>(i)]->receive().body, "r" + std::to_string(i));
}

TEST_F(ServerTest, OperationsPagesStandOnTheirOwnPortWhenThereIsOne) {
  setup.http.api_keys = {"secret"};
  start(true);
  answer_all();
  RawClient main(port);
  main.get("/metrics", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(main.receive().status, 404);
  RawClient metrics(metrics_port);
  metrics.get("/metrics");
  EXPECT_EQ(metrics.receive().status, 200);
  metrics.get("/config-info");
  EXPECT_EQ(metrics.receive().status, 200);
  metrics.get("/v1/models");
  EXPECT_EQ(metrics.receive().status, 404);
  EXPECT_EQ(std::get<InfoRequest>(backend.call(0).body).kind, InfoRequest::Kind::metrics);
  EXPECT_EQ(std::get<InfoRequest>(backend.call(1).body).kind, InfoRequest::Kind::config_info);
}

TEST_F(ServerTest, DecodesTheModelsName) {
  start();
  answer_all();
  RawClient client(port);
  client.get("/v1/models/a%2Fb");
  EXPECT_EQ(client.receive().status, 200);
  const auto info = std::get<InfoRequest>(backend.call(0).body);
  EXPECT_EQ(info.kind, InfoRequest::Kind::model);
  EXPECT_EQ(info.name, "a/b");
}

// Corpus row 63.
TEST_F(ServerTest, TheKeyGuardsEverythingButHealth) {
  setup.http.api_keys = {"first", "second"};
  start();
  answer_all();
  const std::vector<std::string> bad = {"",
                                        "Authorization: Bearer wrong\r\n",
                                        "Authorization: Bearer \r\n",
                                        "Authorization: first\r\n",
                                        "Authorization: Basic first\r\n",
                                        "Authorization: Bearer firs\r\n",
                                        "Authorization: Bearer first2\r\n",
                                        "x-api-key: \r\n",
                                        "x-api-key: firs\r\n",
                                        "x-api-key: Bearer first\r\n",
                                        "x-api-key: wrong\r\nAuthorization: Bearer wrong\r\n",
                                        "Authorization: Bearer \xC3\xA9\r\n"};
  for (const std::string& header : bad) {
    RawClient client(port);
    for (const char* path : {"/v1/models", "/metrics", "/config-info", "//v1/models", "/V1/models", "/nope",
                             "/v1/chat/completions", "/health/", "/Health"}) {
      client.get(path, header);
      const Response response = client.receive();
      EXPECT_EQ(response.status, 401) << path << " " << header;
      EXPECT_EQ(response.error().at("type"), "authentication_error");
      EXPECT_EQ(response.error().at("code"), "invalid_api_key");
      EXPECT_TRUE(response.error().at("param").is_null());
      EXPECT_EQ(response.header("WWW-Authenticate"), "Bearer");
    }
    client.post("/tokenize", R"({"prompt":"x"})", header);
    EXPECT_EQ(client.receive().status, 401);
  }
  EXPECT_EQ(backend.count(), 0u);
  RawClient client(port);
  client.get("/health");
  EXPECT_EQ(client.receive().status, 200);
  for (const char* key : {"Authorization: Bearer first\r\n", "authorization: bearer second\r\n",
                          "x-api-key: first\r\n", "X-Api-Key: second\r\nAuthorization: Bearer wrong\r\n"}) {
    client.get("/v1/models", key);
    EXPECT_EQ(client.receive().status, 200);
  }
  RawClient huge(port);
  huge.get("/v1/models", "Authorization: Bearer " + std::string(1 << 20, 'k') + "\r\n");
  EXPECT_EQ(huge.receive().status, 431);
}

}  // namespace
}  // namespace troupe::http::test
