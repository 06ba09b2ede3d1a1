#include "http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <utility>

#include "http/openai_error.h"

namespace troupe::http {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kReadBytes = 64 << 10;         // one read at most, through the thread's scratch buffer
constexpr std::size_t kPipelineBytes = 64 << 10;     // input kept while an answer is pending
constexpr std::size_t kPipelineBacklog = 256 << 10;  // unsent answers above which no further request is begun
constexpr std::size_t kDiscardBytes = 64 << 10;  // a refused body up to this size is read, the connection kept
constexpr std::size_t kLingerBytes = 32 << 20;   // input read and dropped at most while lingering
constexpr auto kReservedTime = std::chrono::seconds(2);  // for the request of a connection beyond a limit
constexpr int kUnsentInKernel = 128 << 10;       // small, so that a reader that has stopped is noticed here

}  // namespace

Visit::Visit(Doorman& doorman, Peer peer, Pages pages, bool open)
    : doorman_(&doorman), peer_(std::move(peer)), pages_(pages), open_(open), refusal_(doorman.enter(peer_)) {}

Visit::Visit(Visit&& other) noexcept
    : doorman_(std::exchange(other.doorman_, nullptr)),
      peer_(std::move(other.peer_)),
      pages_(other.pages_),
      open_(other.open_),
      refusal_(std::move(other.refusal_)),
      client_(std::move(other.client_)) {}

Visit::~Visit() {
  if (doorman_ == nullptr) return;
  end_request();
  if (refusal_.ok()) doorman_->leave(peer_);
}

Status Visit::begin_request(std::string_view forwarded_for) {
  std::string client = doorman_->client_of(forwarded_for);
  Status status = client.empty() ? Status() : doorman_->begin_request(client);
  if (status.ok()) client_ = std::move(client);
  return status;
}

void Visit::end_request() {
  if (!client_.empty()) doorman_->end_request(std::exchange(client_, {}));
}

Connection::Connection(IoThread& io, Transport transport, Visit visit)
    : io_(io), transport_(std::move(transport)), visit_(std::move(visit)), reader_(io.shared().limits) {}

// An exception here is a lack of memory or a bug: it ends this connection and no other.
template <class Action>
void Connection::guarded(Action action) {
  try {
    action();
  } catch (const std::exception&) {
    abort();
  }
}

void Connection::start() {
  boost::system::error_code ignored;
  Socket& socket = transport_.socket();
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInKernel,
               sizeof kUnsentInKernel);
  begin_head();
  await_input();
}

// ---- Reading ----------------------------------------------------------------------------------------

void Connection::await_input() {
  if (phase_ == Phase::closed || awaiting_input_) return;
  const bool holds_back = phase_ == Phase::idle || answering();  // the other phases bound their input
  if (holds_back && reader_.buffered() >= kPipelineBytes) {
    // No more input is read; that the client is gone still shows as an error.
    if (awaiting_error_) return;
    awaiting_error_ = true;
    transport_.socket().async_wait(Socket::wait_error, [self = shared_from_this()](boost::system::error_code error) {
      self->awaiting_error_ = false;
      if (!error && self->phase_ != Phase::closed) self->abort();
    });
    return;
  }
  awaiting_input_ = true;
  transport_.socket().async_wait(transport_.input_wait(), [self = shared_from_this()](boost::system::error_code error) {
    self->awaiting_input_ = false;
    if (error || self->phase_ == Phase::closed) return;
    self->guarded([&] { self->on_input(); });
  });
}

void Connection::on_input() {
  const std::span<char> scratch = io_.scratch();
  boost::system::error_code error;
  const std::size_t n = transport_.read_some(scratch.first(std::min(kReadBytes, scratch.size())), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) {
    await_input();
    return;
  }
  if (error) {  // or the end of the stream: a client that stops sending before it has the answer has left
    if (transport_.handshake_failed()) io_.shared().backend.handshake_failed(visit_.peer().address, transport_.tls_error());
    abort();
    return;
  }
  if (phase_ == Phase::head && reader_.buffered() == 0) begin_head();
  reader_.append(scratch.first(n));
  progress();
}

void Connection::progress() {
  if (progressing_) return;
  progressing_ = true;
  do {
    while (step()) {
    }
    write();
  } while (phase_ == Phase::idle && reader_.buffered() > 0 && writer_.unsent() == 0);
  progressing_ = false;
  await_input();
}

// Makes one transition. False when input, an answer or room to write is needed first.
bool Connection::step() {
  switch (phase_) {
    case Phase::idle:
      if (reader_.buffered() == 0 || writer_.unsent() > kPipelineBacklog) return false;
      begin_head();
      return true;
    case Phase::head: return read_head();
    case Phase::body: return read_body();
    case Phase::lingering:
      discarded_ += reader_.discard();
      if (discarded_ > kLingerBytes) close();
      return false;
    case Phase::waiting:
    case Phase::streaming:
    case Phase::closed: return false;
  }
  return false;
}

bool Connection::read_head() {
  switch (reader_.read_head()) {
    case RequestReader::Progress::need_more: return false;
    case RequestReader::Progress::refused: return refuse_and_close(reader_.refusal());
    case RequestReader::Progress::complete: break;
  }
  const HeadView head = reader_.head();
  unrecorded_ = true;
  stream_failed_ = false;
  writer_.begin_answer();
  method_ = head.method;
  target_ = path_of(head.target).substr(0, 256);
  keep_alive_ = reader_.keep_alive();
  request_id_ = sane_request_id(reader_.header("x-request-id"));
  if (request_id_.empty()) request_id_ = io_.fresh_request_id();
  admission_ = io_.shared().desk.admit(head, visit_.pages(), visit_.open() ? nullptr : &io_.keys());
  check_limits();
  return begin_body();
}

// Health is answered beyond the limits: load must not look like failure.
void Connection::check_limits() {
  const bool health = admission_.handler == Handler::health || admission_.handler == Handler::live;
  if (!visit_.refusal().ok()) {
    keep_alive_ = false;
    if (!health && !visit_.open()) admission_.refusal = visit_.refusal();
  } else if (visit_.peer().trusted_proxy && !health) {
    Status status = visit_.begin_request(reader_.joined_header("X-Forwarded-For"));
    if (status.ok()) return;
    io_.shared().backend.turned_away(visit_.peer().address, status);
    admission_.refusal = std::move(status);
  }
}

bool Connection::begin_body() {
  const HeadFacts& facts = reader_.facts();
  const std::uint64_t length = facts.content_length.value_or(0);
  const auto limit = static_cast<std::uint64_t>(io_.shared().limits.max_body_bytes);
  const bool wait_for_it = !facts.chunked && length <= kDiscardBytes && !facts.expect_continue;
  if (!admission_.refusal.ok() && facts.has_body() && !wait_for_it) return refuse_and_close(admission_.refusal);
  if (length > limit) {
    return refuse_and_close({Code::too_large,
                             "The body has " + std::to_string(length) + " bytes; at most " +
                                 std::to_string(limit) + " are allowed",
                             {},
                             "request_too_large"});
  }
  if (facts.expect_continue && facts.has_body() && !facts.http10 && reader_.buffered() == 0) {
    writer_.append_continue();
  }
  enter(Phase::body);
  return true;
}

bool Connection::read_body() {
  switch (reader_.read_body()) {
    case RequestReader::Progress::need_more: return false;
    case RequestReader::Progress::refused: return refuse_and_close(reader_.refusal());
    case RequestReader::Progress::complete: break;
  }
  return finish_request();
}

bool Connection::finish_request() {
  enter(Phase::waiting);
  Shared& shared = io_.shared();
  auto outcome = admission_.refusal.ok()
                     ? shared.desk.handle(admission_, reader_.body(), request_id_, shared.draining)
                     : std::variant<Call, Output>(error_output(0, admission_.refusal, 0, admission_.style));
  reader_.end_request();
  if (const auto* output = std::get_if<Output>(&outcome)) {
    answer(*output);
    return true;
  }
  Call& call = std::get<Call>(outcome);
  warning_ = warning_text(call.ignored_fields);
  exchange_ = io_.open_exchange(shared_from_this());
  call.exchange = exchange_;
  call.request_id = request_id_;
  call.received = phase_since_;
  shared.backend.submit(std::move(call));
  return false;
}

// ---- Answering --------------------------------------------------------------------------------------

void Connection::take(Output&& output) {
  if (!answering()) return;
  switch (output.kind) {
    case Output::Kind::whole:
      if (phase_ == Phase::streaming) {  // the head was sent already, so the error has to be an event
        append_events(last_event(output.body, admission_.style));
        end_stream(/*failed=*/true);
      } else {
        answer(output);
      }
      return;
    case Output::Kind::head:
      if (phase_ == Phase::waiting) begin_stream(output.headers);
      return;
    case Output::Kind::data: append_events(output.body); return;
    case Output::Kind::end: end_stream(output.failed); return;
  }
}

ResponseHead Connection::response_head(std::uint16_t status) {
  keep_alive_ = keep_alive_ && !io_.shared().draining;
  return {.status = status,
          .request_id = request_id_,
          .date = io_.date(),
          .warning = warning_,
          .close = !keep_alive_,
          .allow_origin = admission_.allow_origin,
          .vary_origin = admission_.vary_origin};
}

void Connection::begin_stream(const std::vector<std::pair<std::string, std::string>>& extra) {
  ResponseHead head = response_head(200);
  head.chunked = !reader_.facts().http10;
  writer_.begin_stream(head, extra);
  enter(Phase::streaming);
}

void Connection::append_events(std::string_view bytes) {
  if (phase_ == Phase::waiting) begin_stream({});
  writer_.append_events(bytes);
  const auto limit = static_cast<std::size_t>(io_.shared().limits.max_stream_buffer_bytes);
  if (writer_.unsent() <= limit) return;
  write();
  if (writer_.unsent() > limit) abort();
}

void Connection::end_stream(bool failed) {
  if (phase_ == Phase::waiting) begin_stream({});
  if (phase_ != Phase::streaming) return;
  writer_.end_stream();
  stream_failed_ = failed;
  end_answer(200);
}

void Connection::answer(const Output& output) {
  ResponseHead head = response_head(output.status);
  head.content_type = content_type(output.content);
  if (output.status == 405) head.allow = admission_.allow;
  writer_.append_whole(head, output, method_ == "HEAD");
  end_answer(output.status);
}

void Connection::end_answer(std::uint16_t status) {
  if (exchange_.id != 0) {
    io_.close_exchange(std::exchange(exchange_, {}));
    ++unsettled_;
  }
  record(status);
  warning_.clear();
  enter(keep_alive_ ? Phase::idle : Phase::lingering);
}

// For input that cannot be trusted or is not wanted: what follows it is not read as a request.
bool Connection::refuse_and_close(const Status& status) {
  const AnswerStyle style = unrecorded_ ? admission_.style : AnswerStyle::openai;
  if (!unrecorded_) {  // the head was not even read
    unrecorded_ = true;
    admission_ = {};
    method_.clear();
    target_.clear();
    request_id_ = io_.fresh_request_id();
  }
  reader_.end_request();
  keep_alive_ = false;
  answer(error_output(0, status, 0, style));
  return true;
}

void Connection::record(std::uint16_t status) {
  visit_.end_request();
  if (!std::exchange(unrecorded_, false)) return;
  io_.shared().backend.answered({.request_id = request_id_,
                                 .method = method_,
                                 .target = target_,
                                 .status = status,
                                 .failed = stream_failed_,
                                 .bytes = writer_.body_bytes(),
                                 .duration = Clock::now() - request_since_});
}

// ---- Writing and ending -----------------------------------------------------------------------------

void Connection::flush() {
  guarded([&] {
    write();
    if (phase_ == Phase::idle && reader_.buffered() > 0) progress();
  });
}

void Connection::write() {
  if (awaiting_room_ || phase_ == Phase::closed) return;
  switch (writer_.write(transport_)) {
    case ResponseWriter::Progress::broken: abort(); return;
    case ResponseWriter::Progress::blocked:
      awaiting_room_ = true;
      blocked_since_ = Clock::now();
      transport_.socket().async_wait(Socket::wait_write, [self = shared_from_this()](boost::system::error_code failed) {
        self->awaiting_room_ = false;
        if (!failed && self->phase_ != Phase::closed) self->flush();
      });
      return;
    case ResponseWriter::Progress::sent: break;
  }
  settle();
  if (phase_ == Phase::lingering) shut();
  if (phase_ == Phase::idle) {
    writer_.shrink();
    reader_.shrink();
  }
}

// Closed exchanges count as active until their answers are sent.
void Connection::settle() { io_.settle(std::exchange(unsettled_, 0)); }

void Connection::enter(Phase phase) {
  phase_ = phase;
  phase_since_ = Clock::now();
}

void Connection::begin_head() {
  enter(Phase::head);
  request_since_ = phase_since_;
}

// Closing while input is unread would reset the connection, and the client could lose the answer.
void Connection::shut() {
  if (std::exchange(shut_, true)) return;
  transport_.end_sending();
  phase_since_ = Clock::now();
}

void Connection::abort() {
  if (phase_ == Phase::closed) return;
  const Exchange exchange = std::exchange(exchange_, {});
  if (exchange.id != 0) {
    io_.close_exchange(exchange);
    ++unsettled_;
  }
  settle();
  if (exchange.id != 0) io_.shared().backend.cancel(exchange);
  record(499);
  close();
}

void Connection::turn_away() {
  guarded([&] {
    if (phase_ == Phase::head) refuse_and_close(visit_.refusal());
    write();
    abort();
  });
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  settle();
  transport_.close();
  io_.remove(shared_from_this());
}

void Connection::tick(TimePoint now) {
  const DeadlineVerdict verdict = check_deadlines({.phase = phase_,
                                                   .in_phase = now - phase_since_,
                                                   .blocked = awaiting_room_ ? now - blocked_since_ : Duration(),
                                                   .unsent = writer_.unsent() > 0,
                                                   .input = reader_.buffered() > 0,
                                                   .body_received = reader_.body_received()},
                                                  io_.shared().limits);
  switch (verdict.overdue) {
    case Overdue::no:
      if (visit_.refusal().ok() || phase_ != Phase::head || now - phase_since_ <= kReservedTime) return;
      refuse_and_close(visit_.refusal());
      flush();
      return;
    case Overdue::abort: abort(); return;
    case Overdue::close: close(); return;
    case Overdue::refuse:
      refuse_and_close(verdict.status);
      flush();
      return;
  }
}

}  // namespace troupe::http
