#pragma once
// One I/O thread: its event loop, its connections, the exchanges they wait for, and the mailbox into which
// other threads put outputs. Private to the files that know Asio.
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "http/server/api_keys.h"
#include "http/server/backend.h"
#include "http/server/connection_limiter.h"
#include "http/server/faults.h"
#include "http/server/memory_share.h"
#include "http/server/parse_thread.h"
#include "http/server/request_handler.h"
#include "http/server/server.h"
#include "http/server/tls_session.h"

namespace troupe::http {

class Connection;
using Socket = boost::asio::ip::tcp::socket;

/// What a reload replaces.
struct Credentials {
  std::shared_ptr<const ApiKeys> keys;
  TlsContext tls;  ///< null: plain HTTP
};

/// Connections beyond a limit that a thread keeps nevertheless, so that health can be asked for whoever else
/// is there.
inline constexpr std::size_t kReservedPlaces = 16;

/// What --host names and this machine's name.
std::vector<std::string> own_hosts(const config::HttpOptions& http);

/// What all threads of one server share.
struct Shared {
  config::LimitOptions limits;
  RequestHandler handler;
  Backend& backend;
  ConnectionLimiter limiter;
  std::atomic<std::size_t> active{0};
  MemoryTotals memory;
  std::atomic<bool> draining{false};
  Faults faults;
  std::array<ParseThread, kParsers> parsers;  ///< for middling bodies and for large ones

  Shared(const config::HttpOptions& http, const config::LimitOptions& limit_options,
         AddressSet trusted_proxies, ModelFacts model, Backend& behind, const std::string& owner_salt = {},
         std::vector<ModelFacts> more_models = {})
      : limits(limit_options),
        handler(Hosts(own_hosts(http), http.allowed_hosts), http.allowed_origins, limits, std::move(model),
                behind, owner_salt, std::move(more_models)),
        backend(behind),
        limiter(limits, std::move(trusted_proxies)),
        faults(behind) {}
};

class IoThread {
 public:
  IoThread(Shared& shared, std::uint32_t index);
  ~IoThread();

  // From any thread.
  boost::asio::io_context& context() { return context_; }
  /// `each_tick` is called on the thread four times a second; may be empty.
  void start(std::function<void()> each_tick = {});
  void deliver(std::vector<Output>&& outputs);
  /// From the next request on, and for the TLS of the next connection.
  void renew(Credentials credentials);
  void drain();
  void stop();  ///< cancels what is active, closes all, joins

  // From this thread only.
  void adopt(Socket socket, std::string address, Entrance entrance);
  void remove(const std::shared_ptr<Connection>& connection);
  Exchange open_exchange(const std::shared_ptr<Connection>& connection);
  /// Outputs for it are dropped from now on. It counts as active until settle().
  void close_exchange(Exchange exchange) { exchanges_.erase(exchange.id); }
  /// The answers of `count` closed exchanges were sent or given up.
  void settle(std::size_t count) { shared_.active -= count; }
  std::string fresh_request_id();
  std::string_view date();
  Shared& shared() { return shared_; }
  const ApiKeys& keys() const { return *credentials_.keys; }
  /// Buffer for one read, copied to the connection afterwards: idle connections hold no memory.
  std::span<char> scratch() { return scratch_; }

 private:
  void run();
  void take_outputs();
  void shed();
  void take_reserved_place(Connection* connection);
  void tick();
  void check_deadlines();
  /// Does `work` for a connection, and ends that connection when it throws.
  template <class Work>
  void protect(const std::shared_ptr<Connection>& connection, Work&& work);

  Shared& shared_;
  const std::uint32_t index_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer timer_{context_};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;

  std::mutex box_mutex_;
  std::vector<std::vector<Output>> box_;  // guarded by box_mutex_
  bool box_closed_ = false;               // likewise

  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::vector<Connection*> reserved_;  ///< connections beyond a limit, the oldest first
  Credentials credentials_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Connection>> exchanges_;
  std::vector<std::shared_ptr<Connection>> touched_;
  std::uint64_t next_exchange_ = 1;
  std::vector<char> scratch_ = std::vector<char>(64 << 10);
  std::mt19937_64 random_;
  std::time_t date_second_ = 0;
  std::string date_;
  std::function<void()> each_tick_;
  bool ticking_ = false;  ///< the timer runs
  bool stopping_ = false;
};

}  // namespace troupe::http
