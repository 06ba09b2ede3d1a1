#include "http/server/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <utility>

#include "http/api/openai_error.h"
#include "http/server/client_identity.h"

namespace troupe::http {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kReadBytes = 64 << 10;         // one read at most, through the thread's scratch buffer
constexpr std::size_t kPipelineBytes = 64 << 10;     // input kept while an answer is pending
constexpr std::size_t kPipelineBacklog = 256 << 10;  // unsent answers above which no further request is begun
constexpr std::size_t kDiscardBytes = 64
                                      << 10;    // a refused body up to this size is read, the connection kept
constexpr std::size_t kLingerBytes = 32 << 20;  // input read and dropped at most while lingering
constexpr auto kReservedTime = std::chrono::seconds(2);  // for the request of a connection beyond a limit
constexpr int kUnsentInKernel = 128 << 10;  // small, so that a reader that has stopped is noticed here

}  // namespace

Connection::Connection(IoThread& io, Transport transport, ConnectionPermit permit)
    : io_(io),
      transport_(std::move(transport)),
      permit_(std::move(permit)),
      reader_(io.shared().limits),
      memory_(io.shared().memory, io.shared().limits.max_buffered_bytes),
      answer_(writer_),
      exchange_(io),
      parsing_(io.shared()) {}

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
    transport_.socket().async_wait(Socket::wait_error,
                                   [self = shared_from_this()](boost::system::error_code error) {
                                     self->awaiting_error_ = false;
                                     if (!error && self->phase_ != Phase::closed) self->abort();
                                   });
    return;
  }
  awaiting_input_ = true;
  transport_.socket().async_wait(transport_.input_wait(),
                                 [self = shared_from_this()](boost::system::error_code error) {
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
    if (transport_.handshake_failed())
      io_.shared().backend.handshake_failed(permit_.peer().address, transport_.tls_error());
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
  if (phase_ != Phase::closed) {
    reader_.shrink();
    count_held();
  }
  await_input();
}

// Makes one transition. False when input, an answer or room to write is needed first.
bool Connection::step() {
  switch (phase_) {
    case Phase::idle:
      if (reader_.buffered() == 0 || writer_.unsent() > kPipelineBacklog || writer_.sending_file())
        return false;
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
  answer_.begin();
  keep_alive_ = reader_.facts().keep_alive;
  request_.begin(head.method, head.target, sane_request_id(head.request_id));
  if (request_.id().empty()) request_.set_id(io_.fresh_request_id());
  request_.admit(io_.shared().handler.admit(head, permit_.entrance(), io_.keys()));
  check_limits();
  request_.set_client(client_identity(&io_.keys(), head.authorization, head.x_api_key, permit_.client()));
  return begin_body();
}

// Health is answered beyond the limits: load must not look like failure.
void Connection::check_limits() {
  const bool health = request_.serves(Handler::health) || request_.serves(Handler::live);
  if (!permit_.refusal().ok()) {
    keep_alive_ = false;
    if (!health && !permit_.entrance().open) request_.refuse(permit_.refusal());
  } else if (permit_.peer().trusted_proxy && !health) {
    Status status = permit_.begin_request(reader_.forwarded_for());
    if (status.ok()) return;
    io_.shared().backend.turned_away(permit_.peer().address, status);
    request_.refuse(std::move(status));
  }
}

bool Connection::begin_body() {
  const HeadFacts& facts = reader_.facts();
  const std::uint64_t length = facts.content_length.value_or(0);
  auto limit = static_cast<std::uint64_t>(io_.shared().limits.body_bytes());
  const bool wait_for_it = !facts.chunked && length <= kDiscardBytes && !facts.expect_continue;
  if (!request_.refusal().ok() && facts.has_body() && !wait_for_it)
    return refuse_and_close(request_.refusal());
  const bool upload = request_.refusal().ok() && request_.admission().match.uploads();
  if (upload) {
    auto sink = io_.shared().backend.receive(reader_.head().content_type);
    if (!sink.ok()) return refuse_and_close(sink.status());
    limit = (*sink)->most_bytes();
    reader_.send_body_to(*std::move(sink));
  }
  if (length > limit) {
    return refuse_and_close({Code::too_large,
                             "The body has " + std::to_string(length) + " bytes; at most " +
                                 std::to_string(limit) + " are allowed",
                             {},
                             "request_too_large"});
  }
  if (const Status status = memory_.check_length(upload ? 0 : length); !status.ok())
    return refuse_and_close(status);
  if (facts.expect_continue && facts.has_body() && !facts.http10 && reader_.buffered() == 0) {
    writer_.append_continue();
  }
  enter(Phase::body);
  return true;
}

bool Connection::read_body() {
  const RequestReader::Progress progress = reader_.read_body();
  reader_.shrink();
  count_held();
  const std::size_t kept = reader_.has_sink() ? 0 : reader_.body_received();
  if (const Status status = memory_.check_received(kept); !status.ok()) return refuse_and_close(status);
  switch (progress) {
    case RequestReader::Progress::need_more: return false;
    case RequestReader::Progress::refused: return refuse_and_close(reader_.refusal());
    case RequestReader::Progress::complete: break;
  }
  return finish_request();
}

// Counts the memory that what was received takes: the buffers until the body is parsed, then as many bytes as
// the body had until it is answered.
void Connection::count_held() {
  std::size_t bytes = phase_ == Phase::closed ? 0 : reader_.held_bytes();
  if (phase_ == Phase::waiting) bytes = std::max(bytes, request_.body_bytes());
  memory_.set_held(bytes);
}

bool Connection::finish_request() {
  request_.set_body_bytes(reader_.body().size());
  enter(Phase::waiting);
  if (request_.refusal().ok() && ParseHandOver::wants(request_.body_bytes())) {
    parse_apart();
    return false;
  }
  Shared& shared = io_.shared();
  std::optional<ParseHandOver::Outcome> outcome;
  Status status = request_.refusal();
  if (status.ok()) {
    status = shared.faults.attempt(FaultPlace::parsing, [&] {
      outcome.emplace(
          shared.handler.handle(request_.admission(), reader_.body(), request_.id(), shared.draining));
    });
  }
  if (!outcome) outcome.emplace(error_output(0, status, 0, request_.api()));
  if (Call* call = std::get_if<Call>(&*outcome); call != nullptr && reader_.has_sink()) {
    if (auto* store = std::get_if<StoreRequest>(&call->body)) store->upload = reader_.take_sink();
  }
  reader_.end_request();
  return handled(*std::move(outcome));
}

// The exchange is open meanwhile, so that the server does not count as idle.
void Connection::parse_apart() {
  const Exchange exchange = exchange_.open(shared_from_this());
  ParseHandOver::Job job{.known = {}, .admission = request_.admission(), .body = reader_.take_body()};
  reader_.end_request();
  request_.describe(job.known, exchange, phase_since_);
  parsing_.start(io_.context(), std::move(job),
                 [self = shared_from_this(), exchange](ParseHandOver::Outcome&& outcome) {
                   self->take_parsed(exchange, std::move(outcome));
                 });
}

void Connection::take_parsed(Exchange exchange, ParseHandOver::Outcome&& outcome) {
  if (exchange_.is(exchange)) {
    guarded([&] {
      if (handled(std::move(outcome))) flush();
    });
  } else if (Call* call = std::get_if<Call>(&outcome)) {  // the client has left
    parsing_.discard(std::move(*call));
  }
}

// True when the request is answered; else the backend has it.
bool Connection::handled(ParseHandOver::Outcome&& outcome) {
  if (auto* output = std::get_if<Output>(&outcome)) {
    answer(std::move(*output));
    return true;
  }
  Call& call = std::get<Call>(outcome);
  answer_.set_ignored(call.ignored_fields);
  request_.describe(call, exchange_.open(shared_from_this()), phase_since_);
  exchange_.submit(std::move(call));
  return false;
}

// ---- Answering --------------------------------------------------------------------------------------

void Connection::take(Output&& output) {
  if (!answering()) return;
  if (phase_ == Phase::waiting) {
    if (output.kind == Output::Kind::whole) return answer(std::move(output));
    answer_.begin_stream(answer_head(), request_, reader_.facts().http10, output);
    enter(Phase::streaming);
  }
  if (answer_.append(output, request_.api())) end_answer(200);
}

// Whether the connection is kept is decided with the head.
AnswerHead Connection::answer_head() {
  keep_alive_ = keep_alive_ && !io_.shared().draining;
  return {.date = io_.date(), .close = !keep_alive_};
}

void Connection::answer(Output&& output) {
  const std::uint16_t status = output.status;
  answer_.write_whole(answer_head(), request_, std::move(output));
  end_answer(status);
}

void Connection::end_answer(std::uint16_t status) {
  exchange_.close();
  record(status);
  answer_.end();
  enter(keep_alive_ ? Phase::idle : Phase::lingering);
}

// For input that cannot be trusted or is not wanted: what follows it is not read as a request.
bool Connection::refuse_and_close(const Status& status) {
  if (!request_.begun()) {
    request_.begin_unread();
    request_.set_id(io_.fresh_request_id());
    answer_.begin();
  }
  reader_.end_request();
  keep_alive_ = false;
  answer(error_output(0, status, 0, request_.api()));
  return true;
}

void Connection::record(std::uint16_t status) {
  permit_.end_request();
  if (!request_.end()) return;
  io_.shared().backend.answered(
      request_.record(status, answer_.failed(), writer_.body_bytes(), Clock::now()));
}

// ---- Writing ----------------------------------------------------------------------------------------

void Connection::flush() {
  guarded([&] {
    write();
    if (phase_ == Phase::idle && reader_.buffered() > 0) progress();
  });
}

void Connection::write() {
  if (phase_ == Phase::closed) return;
  if (awaiting_room_) {
    count_unsent();
    return;
  }
  const ResponseWriter::Progress progress = writer_.write(transport_);
  count_unsent();
  switch (progress) {
    case ResponseWriter::Progress::broken: abort(); return;
    case ResponseWriter::Progress::blocked:
      awaiting_room_ = true;
      blocked_since_ = Clock::now();
      transport_.socket().async_wait(Socket::wait_write,
                                     [self = shared_from_this()](boost::system::error_code failed) {
                                       self->awaiting_room_ = false;
                                       if (!failed && self->phase_ != Phase::closed) self->flush();
                                     });
      return;
    case ResponseWriter::Progress::sent: break;
  }
  exchange_.settle();  // closed exchanges count as active until their answers are sent
  if (phase_ == Phase::lingering) shut();
  if (phase_ == Phase::idle) {
    writer_.shrink();
    reader_.shrink();
  }
}

void Connection::count_unsent() { memory_.set_unsent(phase_ == Phase::closed ? 0 : writer_.unsent()); }

void Connection::cut() {
  if (!answer_.cut(request_.api())) {
    abort();
    return;
  }
  if (const Exchange unanswered = exchange_.abandon(); unanswered.id != 0)
    io_.shared().backend.cancel(unanswered);
  keep_alive_ = false;
  record(200);
  enter(Phase::lingering);
  reader_.discard();
  flush();
}

// ---- Ending ----------------------------------------------------------------------------------------

void Connection::enter(Phase phase) {
  if (phase == Phase::body) receiving_.forget();
  phase_ = phase;
  count_held();
  phase_since_ = Clock::now();
}

void Connection::begin_head() {
  enter(Phase::head);
  request_.await(phase_since_);
}

// Closing while input is unread would reset the connection, and the client could lose the answer.
void Connection::shut() {
  if (std::exchange(shut_, true)) return;
  transport_.end_sending();
  phase_since_ = Clock::now();
}

void Connection::abort() noexcept {
  if (phase_ == Phase::closed) return;
  Faults& faults = io_.shared().faults;
  const Exchange unanswered = exchange_.abandon();
  exchange_.settle();
  if (unanswered.id != 0) {
    faults.contain(FaultPlace::connection, [&] { io_.shared().backend.cancel(unanswered); });
  }
  faults.contain(FaultPlace::connection, [&] { record(499); });
  close();
}

void Connection::turn_away() {
  guarded([&] {
    if (phase_ == Phase::head) refuse_and_close(permit_.refusal());
    write();
    abort();
  });
}

void Connection::close() noexcept {
  if (phase_ == Phase::closed) return;
  enter(Phase::closed);
  count_unsent();
  exchange_.settle();
  transport_.close();
  io_.remove(shared_from_this());
}

// What the client has read lately, while more waits for it than its buffer may hold.
std::optional<std::uint64_t> Connection::taken_lately(TimePoint now) {
  const config::LimitOptions& limits = io_.shared().limits;
  if (writer_.unsent() <= static_cast<std::size_t>(limits.max_stream_buffer_bytes)) {
    taking_.forget();
    return std::nullopt;
  }
  const Duration patience = std::chrono::seconds(limits.write_timeout_s);
  return taking_.note(now, writer_.taken(),
                      phase_ == Phase::streaming ? std::min<Duration>(patience, kCatchUpTime) : patience);
}

void Connection::tick(TimePoint now) {
  if (parsing_.lost()) return abort();
  std::optional<std::uint64_t> received_lately;
  if (phase_ == Phase::body) {
    const Duration window = std::chrono::seconds(io_.shared().limits.body_timeout_s);
    received_lately = receiving_.note(now, reader_.body_received(), window);
  }
  const DeadlineVerdict verdict =
      check_deadlines({.phase = phase_,
                       .in_phase = now - phase_since_,
                       .blocked = awaiting_room_ ? now - blocked_since_ : Duration(),
                       .unsent = writer_.unsent() > 0,
                       .input = reader_.buffered() > 0,
                       .parsing = exchange_.parsing(),
                       .received_lately = received_lately,
                       .taken_lately = taken_lately(now)},
                      io_.shared().limits);
  switch (verdict.overdue) {
    case Overdue::no:
      if (permit_.refusal().ok() || phase_ != Phase::head || now - phase_since_ <= kReservedTime) return;
      refuse_and_close(permit_.refusal());
      flush();
      return;
    case Overdue::abort: abort(); return;
    case Overdue::cut: cut(); return;
    case Overdue::close: close(); return;
    case Overdue::refuse:
      refuse_and_close(verdict.status);
      flush();
      return;
  }
}

}  // namespace troupe::http
