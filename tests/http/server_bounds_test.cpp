// What the server keeps in memory for its clients: bodies that arrive, answers that are not read.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <future>

#include "http/support.h"

namespace troupe::http::test {
namespace {

class ServerBounds : public ServerTest {};

// Its stream ends with an error that it can read, whenever it reads on.
TEST_F(ServerBounds, BoundsWhatIsKeptForASlowReader) {
  setup.limits.max_stream_buffer_bytes = 256 << 10;
  setup.limits.write_timeout_s = 600;  // is not what ends it
  start();
  RawClient client(port, 4096);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  for (int i = 0; i < 40; ++i)
    deliver(backend.call(0).exchange, {.body = "data: " + std::string(100 << 10, 'x') + "\n\n"});
  EXPECT_TRUE(backend.wait_cancelled(1));
  const Response response = client.receive();
  EXPECT_TRUE(response.complete);
  EXPECT_LT(response.body.size(), std::size_t{3} << 20);
  const std::size_t error = response.body.rfind("\n\ndata: {\"error\"");
  ASSERT_NE(error, response.body.npos) << response.body.substr(response.body.size() - 200);
  EXPECT_NE(response.body.find("slow_reader", error), response.body.npos);
  EXPECT_TRUE(response.body.ends_with("x\n\n" + response.body.substr(error + 2)));
  EXPECT_EQ(backend.failed(), 1);
  EXPECT_TRUE(client.closed());
}

// As an echo of many choices is: one batch that is larger than the buffer.
TEST_F(ServerBounds, ABatchLargerThanTheBufferIsBackPressureAndNoFault) {
  setup.limits.max_stream_buffer_bytes = 64 << 10;
  start();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(backend.wait_calls(1));
  std::string batch;
  for (int i = 0; i < 100; ++i)
    batch += "data: " + std::string(40 << 10, static_cast<char>('a' + i % 26)) + "\n\n";
  deliver(backend.call(0).exchange, {.body = batch});
  deliver(backend.call(0).exchange, {.body = batch});
  deliver(backend.call(0).exchange, {.kind = Output::Kind::end});
  const Response response = client.receive();
  EXPECT_TRUE(response.complete);
  EXPECT_TRUE(response.body == batch + batch);
}

// A whole answer larger than the buffer has to be read at a pace, too: a byte now and then keeps no
// connection.
TEST_F(ServerBounds, AWholeAnswerIsNotKeptForAReaderThatTrickles) {
  setup.limits.max_stream_buffer_bytes = 4096;
  setup.limits.write_timeout_s = 1;
  backend.script = [this](Exchange exchange) {
    Output output{.kind = Output::Kind::whole, .body = std::string(8 << 20, 'x')};
    output.more.push_back(std::string(8 << 20, 'y'));
    deliver(exchange, std::move(output));
  };
  start();
  RawClient client(port, 4096);
  client.post("/v1/completions", R"({"prompt":"x"})");
  ASSERT_TRUE(backend.wait_calls(1));
  for (int i = 0; i < 200 && server->connections() > 0; ++i) {
    client.read_some(16);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(server->connections(), 0u);
}

TEST_F(ServerBounds, AWholeAnswerInPartsIsOneBody) {
  backend.script = [this](Exchange exchange) {
    Output output{.kind = Output::Kind::whole, .body = "[1"};
    output.more = {std::string(300 << 10, ' '), ",2]"};
    deliver(exchange, std::move(output));
  };
  start();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"x"})");
  const Response response = client.receive();
  EXPECT_EQ(response.body, "[1" + std::string(300 << 10, ' ') + ",2]");
}

// All answers together are bounded: the one with most to read is cut.
TEST_F(ServerBounds, BoundsWhatIsUnsentOnAllConnections) {
  setup.limits.max_stream_buffer_bytes = 64 << 20;
  setup.limits.max_unsent_bytes = 16 << 20;
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::size_t i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawClient>(port, 4096));
    clients.back()->post("/v1/completions", R"({"prompt":"x"})");
    ASSERT_TRUE(backend.wait_calls(i + 1));
  }
  const auto answer = [&](std::size_t i, std::size_t bytes) {
    deliver(backend.call(i).exchange, {.kind = Output::Kind::whole, .body = std::string(bytes, 'x')});
  };
  answer(0, 2 << 20);
  answer(1, 8 << 20);
  answer(2, 4 << 20);
  answer(3, 12 << 20);  // is the largest, and over the bound
  EXPECT_TRUE(clients[3]->closed());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(clients[i]->receive().complete) << i;
  expect_alive();
}

TEST_F(ServerBounds, BoundsTheBodiesOfAllConnections) {
  setup.limits.max_buffered_bytes = 4 << 20;
  start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  int refused = 0;
  for (int i = 0; i < 8; ++i) {  // each sends 1 MiB of its 1.5
    clients.push_back(std::make_unique<RawClient>(port));
    RawClient& client = *clients.back();
    client.send(head + "Content-Length: 1572864\r\n\r\n");
    if (!client.send(std::string(1 << 20, 'x')) || client.readable(milliseconds(200))) ++refused;
  }
  EXPECT_GE(refused, 4);
  const Response response = clients.back()->receive();
  EXPECT_EQ(response.status, 503);
  EXPECT_TRUE(response.header("Retry-After"));
  answer_all();
  RawClient small(port);  // a small one is read in any case
  small.post("/v1/chat/completions", kChat);
  EXPECT_EQ(small.receive().status, 200);
  clients.clear();  // their memory is free again
  for (int i = 0; i < 100; ++i) {
    RawClient large(port);
    large.post("/v1/completions", R"({"prompt":")" + std::string(2 << 20, 'x') + "\"}");
    if (const Response last = large.receive(); last.status == 200) return;
    std::this_thread::sleep_for(milliseconds(50));
  }
  ADD_FAILURE() << "the memory of bodies that are gone is still counted";
}

TEST_F(ServerBounds, RefusesABodyByItsHeadWhenThereIsNoRoom) {
  setup.limits.max_buffered_bytes = 1 << 20;
  start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  RawClient first(port);
  first.send(head + "Content-Length: 1000000\r\n\r\n" + std::string(900'000, 'x'));
  EXPECT_FALSE(first.readable(milliseconds(200)));
  RawClient client(port);
  client.send(head + "Content-Length: 400000\r\n\r\n");
  EXPECT_EQ(client.receive().status, 503);
  EXPECT_TRUE(client.closed());
}

// "Try again later" would be said of it for ever.
TEST_F(ServerBounds, ABodyThatFindsNoRoomEvenAloneIsTooLarge) {
  setup.limits.max_buffered_bytes = 1 << 20;
  start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  RawClient declared(port);
  declared.send(head + "Content-Length: 2000000\r\n\r\n");
  const Response refused = declared.receive();
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("2000000 bytes; at most 1048576 are held at once (--max-buffered-bytes)"),
            refused.body.npos)
      << refused.body;
  EXPECT_TRUE(declared.closed());
  expect_alive();
}

// The connection is the only one: what another holds, even while it is closed, makes it a 503.
TEST_F(ServerBounds, AChunkedBodyThatFindsNoRoomEvenAloneIsTooLarge) {
  setup.limits.max_buffered_bytes = 1 << 20;
  start();
  RawClient chunked(port);
  chunked.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "20000\r\n" + std::string(0x20000, 'x') + "\r\n";
  for (int i = 0; i < 10 && chunked.send(piece); ++i) {
  }
  EXPECT_EQ(chunked.receive().status, 413);
  expect_alive();
}

constexpr std::size_t kSmall = 60'000;

/// Connections that have sent all but the last byte of a small body.
std::vector<std::unique_ptr<RawClient>> incomplete_bodies(int port, int count) {
  const std::string all =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: " +
      std::to_string(kSmall) + "\r\n\r\n" + std::string(kSmall - 1, 'x');
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send(all);
  }
  return clients;
}

TEST_F(ServerBounds, SmallBodiesCountToo) {
  setup.limits.max_buffered_bytes = 1 << 20;  // and as much for small bodies alone
  start();
  answer_all();
  auto clients = incomplete_bodies(port, 60);  // 3.6 MB
  int refused = 0;
  for (const auto& client : clients) refused += client->readable(milliseconds(20)) ? 1 : 0;
  EXPECT_GE(refused, 20);
  EXPECT_LE(refused, 40);
  EXPECT_EQ(clients.back()->receive().status, 503);
  expect_alive();
  clients.clear();
  for (int i = 0; i < 200; ++i) {  // their room is free again
    auto more = incomplete_bodies(port, 15);
    std::this_thread::sleep_for(milliseconds(20));
    int held = 0;
    for (const auto& client : more) held += client->readable(milliseconds(0)) ? 0 : 1;
    if (held == 15) return;
  }
  ADD_FAILURE() << "the memory of bodies that are gone is still counted";
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// In a process of its own: what other tests freed would serve the bodies, or go back while they are measured.
TEST_F(ServerBounds, SmallBodiesTakeTheirSizeAndGiveItBack) {
  constexpr int kClients = 450;
  constexpr std::int64_t kAll = kClients * kSmall, kMostKept = 8 << 20;
  if (::mallinfo2().arena == 0) GTEST_SKIP() << "the allocator is a sanitizer's, which keeps what is freed";
  const auto measure = [&] {
    start();
    expect_alive();
    const std::int64_t before = resident_bytes();
    const auto grown = [&] { return resident_bytes() - before; };
    const auto wait_for = [&](const auto& holds) {
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      while (!holds() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(milliseconds(50));
    };
    auto clients = incomplete_bodies(port, kClients);
    wait_for([&] { return grown() > kAll * 9 / 10; });
    std::this_thread::sleep_for(milliseconds(500));  // for a second copy, if one were made
    const std::int64_t held = grown();
    clients.clear();
    wait_for([&] { return grown() <= kMostKept; });
    const std::int64_t kept = grown();
    std::cerr << "bodies of " << kAll << " bytes: " << held << " held, " << kept << " kept\n";
    // One copy of each, and little beside it.
    std::_Exit(held > kAll * 9 / 10 && held < kAll * 13 / 10 && kept <= kMostKept ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), " held, ");
}

// The thread that handles a request asks the backend for its health; the I/O thread hands the call over.
TEST_F(ServerBounds, ParsesLargeBodiesApart) {
  answer_all();
  std::atomic<std::thread::id> form_made_from{};
  setup.model.tool_form = [&](const Json&, const ToolRules&, const AnswerForm&) -> Result<AnswerForm> {
    form_made_from = std::this_thread::get_id();
    return AnswerForm();
  };
  start();
  RawClient client(port);
  client.post("/v1/completions", R"({"prompt":"small"})");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(backend.asked_from.load(), backend.submitted_from.load());
  client.post("/v1/completions", R"({"prompt":")" + std::string(300 << 10, 'x') + "\"}");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_NE(backend.asked_from.load(), backend.submitted_from.load());
  const std::thread::id large = backend.asked_from;
  EXPECT_EQ(backend.call(1).body_bytes, (std::size_t{300} << 10) + 13);
  client.post("/v1/chat/completions",
              R"({"tools":[{"type":"function","function":{"name":"f","strict":true}}],"messages":[)"
              R"({"role":"user","content":")" +
                  std::string(300 << 10, 'x') + "\"}]}");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(form_made_from.load(), large) << "what a body causes is done where it is parsed";
  client.post("/v1/completions", std::string(300 << 10, '['));  // a refusal comes back the same way
  EXPECT_EQ(client.receive().error()["code"], "json_too_deep");
  client.post("/v1/completions", R"({"prompt":"again"})");
  EXPECT_EQ(client.receive().status, 200);
  client.post("/v1/completions",
              R"({"prompt":")" + std::string(40 << 10, 'x') + "\"}");  // and waits for no large one
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_NE(backend.asked_from.load(), backend.submitted_from.load());
  EXPECT_NE(backend.asked_from.load(), large);
}

// So who watches it sees that it stands still.
TEST_F(ServerBounds, TheThreadThatParsesBeatsWithEveryBody) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> parsing{0};
  backend.asked = [&] {
    ++parsing;
    released.wait();
  };
  start();
  EXPECT_EQ(server->parser_beats(1), 0u) << "there is nothing to do";
  const std::string body = R"({"prompt":")" + std::string(300 << 10, 'x') + R"("})";
  RawClient first(port), second(port);
  first.post("/v1/completions", body);
  while (parsing == 0) std::this_thread::sleep_for(milliseconds(1));
  const std::uint64_t beats = server->parser_beats(1);
  EXPECT_GT(beats, 0u);
  second.post("/v1/completions", body);
  ASSERT_TRUE(becomes_active(2));
  EXPECT_EQ(server->parser_beats(1), beats);
  release.set_value();
  ASSERT_TRUE(backend.wait_calls(2));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server->parser_beats(1) > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(server->parser_beats(1), 0u);
}

TEST_F(ServerBounds, AClientThatLeavesWhileItsBodyIsParsedIsForgotten) {
  start();
  for (int i = 0; i < 20; ++i) {
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":")" + std::string(2 << 20, 'x') + "\"}");
  }
  EXPECT_TRUE(becomes_active(0));
  EXPECT_EQ(backend.cancelled().size(), backend.count());
  expect_alive();
}

}  // namespace
}  // namespace troupe::http::test
