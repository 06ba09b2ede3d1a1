// Whatever allocation fails in the HTTP threads, it ends one connection at most.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <new>

#include "http/support.h"
#include "support/thrown_fault.h"

namespace {

/// Of this thread: allocations that succeed before some fail, and how many do.
thread_local long succeed = 0, fail = 0;

bool fails_now() {
  if (fail == 0) return false;
  if (succeed > 0) {
    --succeed;
    return false;
  }
  --fail;
  return true;
}

}  // namespace

// Out of line: inlined, the compiler sees malloc's memory go to delete and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (fails_now()) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(bytes);
}
// Asio's.
extern "C" [[gnu::noinline]] void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = nullptr;
  return fails_now() || ::posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0 ? nullptr
                                                                                                  : memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace troupe::http::test {
namespace {

/// Lets allocations of the thread that asks for the server's health fail behind that, once for each call of
/// arm().
class FailingBackend : public FakeBackend {
 public:
  void arm(long successes, long failures) {
    successes_ = successes;
    failures_ = failures;
  }
  Health health() const override {
    if (const long failures = failures_.exchange(0); failures > 0) {
      succeed = successes_;
      fail = failures;
    }
    return FakeBackend::health();
  }
  void faulted(FaultPlace place, std::string_view what, std::uint64_t faults) override {
    EXPECT_FALSE(what.empty());
    reported_ += faults;
    ++places_[static_cast<std::size_t>(place)];
  }

  std::uint64_t reported() const { return reported_; }
  std::uint64_t at(FaultPlace place) const { return places_[static_cast<std::size_t>(place)]; }

 private:
  std::atomic<long> successes_{0};
  mutable std::atomic<long> failures_{0};
  std::atomic<std::uint64_t> reported_{0};
  std::array<std::atomic<std::uint64_t>, kFaultPlaces> places_{};
};

/// Where there is IPv6: its listener sees an address of IPv4 in a form too long to be written without an
/// allocation.
int listen_on_both(int* port) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int off = 0;
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 1024) != 0) {
    if (fd >= 0) ::close(fd);
    return listen_on_loopback(port);
  }
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin6_port);
  return fd;
}

class FaultsTest : public ::testing::Test {
 protected:
  void start() {
    setup.http.io_threads = 1;
    setup.listen_fd = listen_on_both(&port);
    server = std::make_unique<Server>(setup, backend);
    ASSERT_TRUE(server->start().ok());
  }
  void TearDown() override {
    if (server) server->stop();
  }
  /// True when a client is served, perhaps not the first one: what was armed may end its connection.
  bool serves() {
    for (int i = 0; i < 20; ++i) {
      RawClient client(port);
      client.get("/v1/models/unknown", "X-Request-Id: probe\r\n", "POST");  // is refused by the server itself
      if (!client.readable(kPatience)) return false;
      if (client.receive().status == 405) return true;
    }
    return false;
  }
  template <class Done>
  bool wait(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(2));
    return done();
  }

  ServerSetup setup;
  FailingBackend backend;
  std::unique_ptr<Server> server;
  int port = 0;
};

TEST_F(FaultsTest, NoFailedAllocationEndsTheListenerOrTheDeadlines) {
  setup.limits.header_timeout_s = 1;
  start();
  for (long successes = 0; successes < 60; ++successes) {
    const std::uint64_t before = server->faults();
    backend.arm(successes, 1);
    const auto ask = [&] {
      RawClient client(port);
      client.get("/health");  // the first one arms the I/O thread: what it does next fails
      return !client.readable(kPatience) || server->faults() > before;
    };
    ASSERT_TRUE(wait(ask)) << "allocation " << successes << " did not fail";
    ASSERT_TRUE(serves()) << "after allocation " << successes;
  }
  EXPECT_GT(backend.at(FaultPlace::connection), 0u);
  EXPECT_GT(backend.at(FaultPlace::accepting), 0u);
  EXPECT_EQ(backend.reported(), server->faults());
  RawClient silent(port);
  silent.send("GET /hea");
  EXPECT_EQ(silent.receive().status, 408) << "deadlines no longer hold";
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(wait([&] { return server->connections() == 0; }));
  EXPECT_EQ(server->active(), 0u);
}

// With nothing else to do, the next allocation is that of a round of deadlines.
TEST_F(FaultsTest, ARoundOfDeadlinesThatFailsIsNotTheLast) {
  setup.limits.header_timeout_s = 1;
  start();
  for (long successes = 0; successes < 8; ++successes) {
    RawClient idle(port);
    idle.get("/health");
    ASSERT_EQ(idle.receive().status, 200);
    backend.arm(successes, 1);
    const std::uint64_t before = server->faults();
    RawClient arming(port);
    arming.get("/health");
    (void)arming.receive();
    ASSERT_TRUE(wait([&] { return server->faults() > before; }));
  }
  EXPECT_GT(backend.at(FaultPlace::deadlines), 0u);
  RawClient silent(port);
  silent.send("GET /hea");
  EXPECT_EQ(silent.receive().status, 408) << "deadlines no longer hold";
}

// A body that is parsed on its own thread, which then has no memory for an error either.
TEST_F(FaultsTest, AParserWithoutMemoryEndsTheConnection) {
  start();
  const std::string body = R"({"prompt":")" + std::string(300 << 10, 'x') + R"("})";
  for (long successes = 0; successes < 24; ++successes) {
    backend.arm(successes, std::numeric_limits<int>::max());
    RawClient client(port);
    client.post("/v1/completions", body);
    EXPECT_TRUE(client.closed()) << successes;
    EXPECT_TRUE(client.rest().empty()) << client.rest();
    backend.arm(0, 1);  // and so the thread may allocate again
    RawClient freeing(port);
    freeing.post("/v1/completions", body);
    EXPECT_EQ(freeing.receive().status, 503);
  }
  EXPECT_GT(backend.at(FaultPlace::parsing), 24u);
  EXPECT_TRUE(wait([&] { return server->active() == 0; }));
}

// On the I/O thread and on both threads for long bodies.
TEST_F(FaultsTest, AFaultInAParserIsTheRequestsAnswer) {
  start();
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{60} << 10, std::size_t{300} << 10}) {
    const troupe::testing::ThrownFault fault("parsing");
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":")" + std::string(bytes, 'x') + R"("})");
    EXPECT_EQ(client.receive().status, 500) << bytes;
    EXPECT_EQ(fault.thrown(), 1);
    client.get("/v1/models/unknown", "", "POST");
    EXPECT_EQ(client.receive().status, 405) << "the connection goes on";
  }
  EXPECT_EQ(backend.at(FaultPlace::parsing), 3u);
}

// A backend that throws, as one without memory does.
class ThrowingBackend : public FakeBackend {
 public:
  void submit(Call&&) override { throw std::bad_alloc(); }
  void cancel(Exchange) override { throw std::bad_alloc(); }
  void answered(const AccessRecord&) override { throw std::bad_alloc(); }
  void faulted(FaultPlace, std::string_view, std::uint64_t faults) override {
    if (++calls % 2 == 1) throw std::bad_alloc();
    reported += faults;
  }
  std::atomic<std::uint64_t> calls{0}, reported{0};
};

TEST(ThrowingBackendTest, EveryConnectionEndsAndIsForgotten) {
  ThrowingBackend backend;
  ServerSetup setup;
  int port = 0;
  setup.http.io_threads = 1;
  setup.listen_fd = listen_on_loopback(&port);
  Server server(setup, backend);
  ASSERT_TRUE(server.start().ok());
  for (int i = 0; i < 8; ++i) {
    RawClient client(port);
    client.post("/v1/completions", R"({"prompt":"x"})");
    EXPECT_TRUE(client.closed());
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((server.connections() > 0 || server.active() > 0) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_EQ(server.connections(), 0u);
  EXPECT_EQ(server.active(), 0u);
  EXPECT_GE(server.faults(), 8u);
  EXPECT_GE(backend.reported + 1, server.faults())
      << "what could not be reported is reported with the next one";
  server.stop();
}

}  // namespace
}  // namespace troupe::http::test
