// The server over loopback: the frames of a stream, and errors among them.
#include "http/server/server.h"

#include <thread>

#include "http/support.h"

namespace troupe::http::test {
namespace {

TEST_F(ServerTest, StreamsFramesInOrder) {
  start();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  const Exchange exchange = backend.call(0).exchange;
  std::vector<Output> batch;
  batch.push_back({.exchange_id = exchange.id, .kind = Output::Kind::head, .headers = {{"X-A", "b"}}});
  for (int i = 0; i < 100; ++i) {
    batch.push_back({.exchange_id = exchange.id, .body = "data: " + std::to_string(i) + "\n\n"});
  }
  server->deliver(exchange.io, std::move(batch));
  deliver(exchange, {.body = "data: [DONE]\n\n"});
  deliver(exchange, {.kind = Output::Kind::end});
  deliver(exchange, {.body = "data: late\n\n"});  // after its end: dropped
  const Response response = client.receive();
  ASSERT_TRUE(response.complete);
  EXPECT_EQ(response.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.header("X-A"), "b");
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  EXPECT_EQ(response.body, expected + "data: [DONE]\n\n");
  client.get("/health");  // the connection lives on
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_TRUE(client.rest().empty());
}

TEST_F(ServerTest, AWholeErrorAfterTheHeadBecomesAnEventAndDone) {
  start();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  const Exchange exchange = backend.call(0).exchange;
  deliver(exchange, {.body = "data: 1\n\n"});
  deliver(exchange, error_output(exchange.id, failure(Code::internal, "lost")));
  const Response response = client.receive();
  EXPECT_TRUE(response.complete);
  EXPECT_TRUE(response.body.starts_with("data: 1\n\ndata: {\"error\":")) << response.body;
  EXPECT_TRUE(response.body.ends_with("\n\ndata: [DONE]\n\n"));
  ASSERT_TRUE(backend.wait_status(200));
  EXPECT_EQ(backend.failed(), 1);
}

TEST_F(ServerTest, TellsAStreamWithAnErrorFromOneThatWentWell) {
  start();
  std::string error = "data: {\"id\":\"an \\\"error\\\": told by the model\"}\n\n";
  for (int failed = 0; failed < 2; ++failed) {
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":"x","stream":true})");
    ASSERT_TRUE(backend.wait_calls(static_cast<std::size_t>(failed) + 1));
    const Exchange exchange = backend.call(static_cast<std::size_t>(failed)).exchange;
    deliver(exchange, {.body = error + "data: [DONE]\n\n"});
    deliver(exchange, {.kind = Output::Kind::end, .failed = failed == 1});
    ASSERT_TRUE(client.receive().complete);
    EXPECT_EQ(backend.failed(), failed);
    error.clear();
    append_error_event(error, failure(Code::internal, "lost"));
  }
}

// What cannot be read as a request is answered without one: its record says nothing of the answer before.
TEST_F(ServerTest, AHeadThatIsRefusedIsNoPartOfTheFailedStreamBefore) {
  setup.limits.header_timeout_s = 1;
  start();
  std::size_t calls = 0;
  for (const std::string_view head : {"NONSENSE\r\n\r\n", "GET / HT"}) {  // refused; not complete in time
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":"x","stream":true})");
    ASSERT_TRUE(backend.wait_calls(++calls));
    const Exchange exchange = backend.call(calls - 1).exchange;
    deliver(exchange, {.body = "data: 1\n\n"});
    deliver(exchange, {.kind = Output::Kind::end, .failed = true});
    ASSERT_TRUE(client.receive().complete);
    client.send(head);
    const int status = client.receive().status;
    EXPECT_EQ(status, calls == 1 ? 400 : 408);
    ASSERT_TRUE(backend.wait_status(static_cast<std::uint16_t>(status)));
    EXPECT_EQ(backend.failed(), static_cast<int>(calls)) << head;
  }
}

}  // namespace
}  // namespace troupe::http::test
