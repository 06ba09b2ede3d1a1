#include "http/server/server.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <functional>
#include <utility>

#include "base/usable_cores.h"
#include "config/credentials.h"
#include "http/server/connection.h"
#include "http/server/io_thread.h"
#include "http/server/response_head.h"
#include "http/server/tls_server.h"

namespace troupe::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(250);  // precision of the deadlines
constexpr int kMaxThreads = 4;
constexpr std::int64_t kReturnedBytes = 16 << 20;  // less than this is not worth the look through all memory
constexpr auto kBetweenReturns = std::chrono::seconds(5);

std::uint32_t thread_count(int asked) {
  if (asked > 0) return static_cast<std::uint32_t>(asked);
  return std::clamp(static_cast<int>(usable_cores()) / 2, 1, kMaxThreads);
}

// The list was checked when the options were read.
AddressSet trusted_proxies_of(const config::HttpOptions& http) {
  AddressSet set;
  for (const std::string& network : http.trusted_proxies) (void)set.add(network);
  return set;
}

/// Also of an IPv4 address in its IPv6 form.
bool is_loopback_address(const asio::ip::address& address) {
  const auto parsed = parse_address(address.to_string());
  return parsed && is_loopback(*parsed);
}

}  // namespace

std::vector<std::string> own_hosts(const config::HttpOptions& http) {
  std::array<char, 256> name{};
  std::vector<std::string> own{http.host};
  if (::gethostname(name.data(), name.size() - 1) == 0) own.emplace_back(name.data());
  return own;
}

// ---- IoThread ---------------------------------------------------------------------------------------

IoThread::IoThread(Shared& shared, std::uint32_t index) : shared_(shared), index_(index) {
  std::random_device entropy;
  std::seed_seq seed{entropy(), entropy(), entropy(), entropy()};
  random_.seed(seed);
}

IoThread::~IoThread() { stop(); }

void IoThread::start(std::function<void()> each_tick) {
  each_tick_ = std::move(each_tick);
  work_.emplace(context_.get_executor());
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), ("http-" + std::to_string(index_)).c_str());
}

// What a handler throws, most likely bad_alloc, has ended what that handler did; the other connections go on.
void IoThread::run() {
  const auto serve = [this] {
    if (!ticking_ && !stopping_) tick();  // the handler that threw may have been the timer's
    context_.run();
  };
  while (!shared_.faults.contain(FaultPlace::loop, serve)) {
  }
}

void IoThread::deliver(std::vector<Output>&& outputs) {
  if (outputs.empty()) return;
  {
    const std::lock_guard lock(box_mutex_);
    if (box_closed_) return;
    box_.push_back(std::move(outputs));
    if (box_.size() > 1) return;  // the thread was woken already and has not read them yet
  }
  shared_.faults.contain(FaultPlace::delivery, [this] { asio::post(context_, [this] { take_outputs(); }); });
}

void IoThread::take_outputs() {
  std::vector<std::vector<Output>> batches;
  {
    const std::lock_guard lock(box_mutex_);
    batches.swap(box_);
  }
  for (std::vector<Output>& batch : batches) {
    for (Output& output : batch) {
      const auto found = exchanges_.find(output.exchange_id);
      if (found == exchanges_.end()) continue;
      const std::shared_ptr<Connection> connection = found->second;
      protect(connection, [&] {
        connection->take(std::move(output));
        touched_.push_back(connection);
      });
    }
  }
  for (const auto& connection : touched_) protect(connection, [&] { connection->flush(); });
  touched_.clear();
  shed();
}

// Answers of all connections wait for more than the server may hold: those with the most are cut. Each thread
// does so for its own.
void IoThread::shed() {
  while (shared_.memory.unsent > shared_.limits.max_unsent_bytes) {
    const auto most =
        std::max_element(connections_.begin(), connections_.end(),
                         [](const auto& a, const auto& b) { return a->unsent() < b->unsent(); });
    if (most == connections_.end() || (*most)->unsent() == 0) return;
    const std::shared_ptr<Connection> connection = *most;
    const std::size_t before = connection->unsent();
    protect(connection, [&] { connection->cut(); });
    if (connection->unsent() >= before) connection->abort();
  }
}

template <class Work>
void IoThread::protect(const std::shared_ptr<Connection>& connection, Work&& work) {
  if (!shared_.faults.contain(FaultPlace::connection, work)) connection->abort();
}

void IoThread::drain() {
  asio::post(context_, [this] {
    const auto connections = connections_;
    for (const auto& connection : connections) {
      if (connection->resting()) connection->abort();
    }
  });
}

void IoThread::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(box_mutex_);
    box_closed_ = true;
  }
  asio::post(context_, [this] {
    stopping_ = true;
    work_.reset();
    timer_.cancel();
    while (!connections_.empty()) {
      const auto connection = std::move(connections_.extract(connections_.begin()).value());
      connection->abort();
    }
  });
  thread_.join();
}

void IoThread::renew(Credentials credentials) {
  asio::post(context_, [this, credentials = std::move(credentials)] { credentials_ = credentials; });
}

void IoThread::adopt(Socket socket, std::string address, Entrance entrance) {
  if (stopping_) return close_socket(socket);
  std::shared_ptr<Connection> connection;
  const auto admit = [&] {
    Transport transport(std::move(socket), entrance.open ? nullptr : credentials_.tls);
    ConnectionPermit permit(shared_.limiter, shared_.limiter.recognise(std::move(address)),
                            std::move(entrance));
    const Status refusal = permit.refusal();
    if (!refusal.ok()) shared_.backend.turned_away(permit.peer().address, refusal);
    connection = std::make_shared<Connection>(*this, std::move(transport), std::move(permit));
    connections_.insert(connection);
    if (!refusal.ok()) take_reserved_place(connection.get());
  };
  if (!shared_.faults.contain(FaultPlace::accepting, admit)) {
    if (connection != nullptr) remove(connection);
    return;
  }
  protect(connection, [&] { connection->start(); });
}

// The oldest is closed first: one that asks for health does so at once, one that only waits has been there
// for longer.
void IoThread::take_reserved_place(Connection* connection) {
  if (reserved_.size() >= kReservedPlaces) reserved_.front()->turn_away();  // which calls remove()
  reserved_.push_back(connection);
}

void IoThread::remove(const std::shared_ptr<Connection>& connection) {
  std::erase(reserved_, connection.get());
  connections_.erase(connection);
}

Exchange IoThread::open_exchange(const std::shared_ptr<Connection>& connection) {
  const Exchange exchange{index_, next_exchange_++};
  exchanges_.emplace(exchange.id, connection);
  ++shared_.active;
  return exchange;
}

std::string IoThread::fresh_request_id() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (int half = 0; half < 2; ++half) {
    std::uint64_t bits = random_();
    for (int i = 0; i < 16; ++i, bits >>= 4) id.push_back(kHex[bits & 15]);
  }
  return id;
}

std::string_view IoThread::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_second_) {
    date_second_ = now;
    date_ = http_date(now);
  }
  return date_;
}

void IoThread::tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](error_code error) {
    ticking_ = false;
    if (error || stopping_) return;
    shared_.faults.contain(FaultPlace::deadlines, [this] { check_deadlines(); });
    if (each_tick_) each_tick_();
    tick();
  });
  ticking_ = true;
}

void IoThread::check_deadlines() {
  const TimePoint now = Clock::now();
  const auto connections = connections_;  // a copy: tick() may remove a connection
  for (const auto& connection : connections) protect(connection, [&] { connection->tick(now); });
  shed();
  take_outputs();  // which deliver() could wake nobody for
}

// ---- Server -----------------------------------------------------------------------------------------

class Server::Impl {
 public:
  Impl(ServerSetup setup, Backend& backend)
      : setup_(std::move(setup)),
        shared_(setup_.http, setup_.limits, trusted_proxies_of(setup_.http), setup_.model, backend,
                setup_.owner_salt, setup_.more_models) {
    const std::uint32_t count = thread_count(setup_.http.io_threads);
    for (std::uint32_t i = 0; i < count; ++i) threads_.push_back(std::make_unique<IoThread>(shared_, i));
  }
  ~Impl() { stop(); }

  Status start() {
    const bool separate = setup_.metrics_fd >= 0;
    Status status = listen(setup_.listen_fd, separate ? Pages::api : Pages::both, false);
    if (status.ok() && separate) status = listen(setup_.metrics_fd, Pages::operations, true);
    if (!status.ok()) {
      listeners_.clear();
      return status;
    }
    if (status = renew(setup_.http); !status.ok()) return status;
    for (const auto& thread : threads_) {
      thread->start(thread == threads_.front() ? std::function<void()>([this] { tick(); }) : nullptr);
    }
    for (std::size_t i = 0; i < kParsers; ++i) shared_.parsers[i].start(kParserNames[i]);
    started_ = true;
    asio::post(threads_[0]->context(), [this] { accept_again(); });
    return {};
  }

  void stop() {
    if (!std::exchange(started_, false)) return;
    asio::post(threads_[0]->context(), [this] {
      for (const auto& listener : listeners_) {
        error_code ignored;
        listener->acceptor.close(ignored);
      }
    });
    for (const auto& thread : threads_) thread->stop();
    for (ParseThread& parser : shared_.parsers) parser.stop();
  }

  Status renew(const config::HttpOptions& http) {
    auto tls = make_server_tls(http);
    if (!tls.ok()) return tls.status();
    const Credentials fresh{
        std::make_shared<const ApiKeys>(config::all_api_keys(http), config::all_admin_api_keys(http)),
        *std::move(tls)};
    for (const auto& thread : threads_) thread->renew(fresh);
    return {};
  }

  void drain() {
    shared_.draining = true;
    for (const auto& thread : threads_) thread->drain();
  }

  Shared& shared() { return shared_; }
  std::vector<std::unique_ptr<IoThread>>& threads() { return threads_; }

 private:
  struct Listener {
    asio::ip::tcp::acceptor acceptor;
    Pages pages;
    bool open;
    bool loopback;
    bool accepting = false;
  };

  Status listen(int fd, Pages pages, bool open) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) {
      return failure(Code::internal,
                     std::string("The listening socket is unusable: ") + std::strerror(errno));
    }
    auto& context = threads_[0]->context();
    auto listener =
        std::make_unique<Listener>(Listener{asio::ip::tcp::acceptor(context), pages, open, false});
    error_code error;
    listener->acceptor.assign(name.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), fd,
                              error);
    if (error) return failure(Code::internal, "The listening socket is unusable: " + error.message());
    listener->loopback = is_loopback_address(listener->acceptor.local_endpoint(error).address());
    listeners_.push_back(std::move(listener));
    return {};
  }

  // On the first I/O thread, like all that follows.
  void tick() {
    accept_again();
    return_memory();
  }

  // Requests of many clients leave holes in the allocator's memory that it keeps. Returned after a peak, and
  // on a thread on which that may take its time.
  void return_memory() {
    const std::int64_t held = shared_.memory.held;
    const TimePoint now = Clock::now();
    if (shared_.memory.most_held - held < kReturnedBytes || now < next_return_) return;
    shared_.memory.most_held = held;
    next_return_ = now + kBetweenReturns;
    shared_.faults.contain(FaultPlace::loop,
                           [this] { shared_.parsers.back().post([] { ::malloc_trim(0); }); });
  }

  void accept_again() {
    for (const auto& listener : listeners_) {
      if (listener->accepting || !listener->acceptor.is_open()) continue;
      shared_.faults.contain(FaultPlace::accepting, [&] { accept(*listener); });
    }
  }

  // Connections are given to the threads in turn.
  void accept(Listener& listener) {
    IoThread& target = *threads_[next_thread_++ % threads_.size()];
    listener.acceptor.async_accept(target.context(), [this, &listener, &target](error_code error,
                                                                                Socket socket) {
      listener.accepting = false;
      // Most likely out of descriptors. After any error accepting pauses until the thread's next tick.
      if (error || !listener.acceptor.is_open()) return;
      shared_.faults.contain(FaultPlace::accepting, [&] { hand_over(std::move(socket), listener, target); });
      shared_.faults.contain(FaultPlace::accepting, [&] { accept(listener); });
    });
    listener.accepting = true;
  }

  static void hand_over(Socket socket, const Listener& listener, IoThread& target) {
    error_code gone;
    const auto peer = socket.remote_endpoint(gone).address();
    if (gone) return;
    const auto here = socket.local_endpoint(gone).address();
    Entrance entrance{.pages = listener.pages,
                      .open = listener.open,
                      .loopback = listener.loopback || is_loopback_address(peer),
                      .address = here.to_string()};
    asio::dispatch(target.context(), [&target, socket = std::move(socket), address = peer.to_string(),
                                      entrance = std::move(entrance)]() mutable {
      target.adopt(std::move(socket), std::move(address), std::move(entrance));
    });
  }

  const ServerSetup setup_;
  Shared shared_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // on the first thread's context
  std::size_t next_thread_ = 0;
  TimePoint next_return_{};
  bool started_ = false;
};

Server::Server(ServerSetup setup, Backend& backend)
    : impl_(std::make_unique<Impl>(std::move(setup), backend)) {}
Server::~Server() = default;

std::uint32_t Server::io_threads_of(const config::HttpOptions& http) { return thread_count(http.io_threads); }

Status Server::start() { return impl_->start(); }
std::uint32_t Server::io_threads() const { return static_cast<std::uint32_t>(impl_->threads().size()); }
void Server::ask_for_beat(std::uint32_t io, std::shared_ptr<Pulse> pulse) {
  asio::post(impl_->threads()[io]->context(), [pulse = std::move(pulse)] { pulse->beat(); });
}
std::uint64_t Server::parser_beats(std::size_t parser) const {
  return impl_->shared().parsers[parser].beats();
}
void Server::deliver(std::uint32_t io, std::vector<Output>&& outputs) {
  if (io < impl_->threads().size()) impl_->threads()[io]->deliver(std::move(outputs));
}
Status Server::renew(const config::HttpOptions& http) { return impl_->renew(http); }
void Server::drain() { impl_->drain(); }
std::uint64_t Server::faults() const { return impl_->shared().faults.count(); }
std::size_t Server::active() const { return impl_->shared().active; }
std::size_t Server::connections() const { return impl_->shared().limiter.inside(); }
void Server::stop() { impl_->stop(); }

}  // namespace troupe::http
