#include "http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "http/openai_error.h"
#include "http/response_head.h"

namespace troupe::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using std::chrono::seconds;

constexpr std::size_t kReadBytes = 64 << 10;         // one read at most, through the thread's scratch buffer
constexpr std::size_t kPipelineBytes = 64 << 10;     // input kept while an answer is pending
constexpr std::size_t kPipelineBacklog = 256 << 10;  // unread answers after which no further request is begun
constexpr std::size_t kDiscardBytes = 64 << 10;  // a refused body so small is read and the connection kept
constexpr std::size_t kLingerBytes = 32 << 20;   // read and dropped at most so that the answer gets through
constexpr auto kLingerTime = seconds(2);
constexpr std::size_t kKeptCapacity = 64 << 10;  // of a buffer of a connection at rest
constexpr int kUnsentInKernel = 128 << 10;       // so that a reader that has stopped is noticed here

std::string_view as_view(beast::string_view text) { return {text.data(), text.size()}; }

Status bad_request(std::string_view message, std::string_view reason) {
  return invalid(std::string(message), {}, std::string(reason));
}

Status timed_out(std::string_view what, int limit_s) {
  return {Code::invalid_argument,
          std::string(what) + " within " + std::to_string(limit_s) + " s",
          {},
          "request_timeout"};
}

}  // namespace

struct Connection::Parser : beast::http::request_parser<beast::http::string_body> {};

Connection::Connection(IoThread& io, Socket socket, std::string address, Pages pages, bool open)
    : io_(io),
      socket_(std::move(socket)),
      address_(std::move(address)),
      pages_(pages),
      open_(open),
      scanner_(io.shared().limits) {}

Connection::~Connection() { io_.shared().doorman.leave(address_); }

// An exception here is memory or a bug; it costs this connection and nothing else.
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
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInKernel,
               sizeof kUnsentInKernel);
  enter(Phase::head);
  request_since_ = phase_since_;
  await_input();
}

// ---- Reading ----------------------------------------------------------------------------------------

void Connection::await_input() {
  if (phase_ == Phase::closed || awaiting_input_) return;
  const bool holds_back = phase_ == Phase::idle || answering();  // the others bound what they read themselves
  if (holds_back && buffer_.size() >= kPipelineBytes) {
    // No room for more input; a client that is gone still shows as an error.
    if (awaiting_error_) return;
    awaiting_error_ = true;
    socket_.async_wait(Socket::wait_error, [self = shared_from_this()](boost::system::error_code error) {
      self->awaiting_error_ = false;
      if (!error && self->phase_ != Phase::closed) self->abort();
    });
    return;
  }
  awaiting_input_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](boost::system::error_code error) {
    self->awaiting_input_ = false;
    if (error || self->phase_ == Phase::closed) return;
    self->guarded([&] { self->on_input(); });
  });
}

void Connection::on_input() {
  const std::span<char> scratch = io_.scratch();
  const std::size_t room = std::min(kReadBytes, scratch.size());
  boost::system::error_code error;
  const std::size_t n = socket_.read_some(asio::buffer(scratch.data(), room), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) {
    await_input();
    return;
  }
  if (error) {  // end of stream among them: whoever stops sending before the answer is there has left
    abort();
    return;
  }
  if (phase_ == Phase::head && buffer_.size() == 0) {
    enter(Phase::head);
    request_since_ = phase_since_;
  }
  asio::buffer_copy(buffer_.prepare(n), asio::buffer(scratch.data(), n));
  buffer_.commit(n);
  progress();
}

void Connection::progress() {
  if (progressing_) return;
  progressing_ = true;
  do {
    while (step()) {
    }
    write();
  } while (phase_ == Phase::idle && buffer_.size() > 0 && unsent() == 0);
  progressing_ = false;
  await_input();
}

// One transition; false when input, an answer or room to write is needed first.
bool Connection::step() {
  switch (phase_) {
    case Phase::idle:
      if (buffer_.size() == 0 || unsent() > kPipelineBacklog) return false;
      enter(Phase::head);
      request_since_ = phase_since_;
      return true;
    case Phase::head: return scan_head();
    case Phase::body: return read_body();
    case Phase::lingering:
      discarded_ += buffer_.size();
      buffer_.consume(buffer_.size());
      if (discarded_ > kLingerBytes) close();
      return false;
    case Phase::waiting:
    case Phase::streaming:
    case Phase::closed: return false;
  }
  return false;
}

bool Connection::scan_head() {
  const auto bytes = buffer_.data();
  switch (scanner_.scan({static_cast<const char*>(bytes.data()), bytes.size()})) {
    case HeadScanner::Progress::need_more: return false;
    case HeadScanner::Progress::complete: return begin_request();
    case HeadScanner::Progress::refused: break;
  }
  return refuse_and_close(scanner_.status());
}

bool Connection::begin_request() {
  facts_ = scanner_.facts();
  scanner_.reset();
  parser_ = std::make_unique<Parser>();
  parser_->eager(true);
  parser_->header_limit(static_cast<std::uint32_t>(facts_.bytes + 1));
  parser_->body_limit(boost::none);  // of a declared length it is checked below, of chunks as they come
  beast::error_code error;
  parser_->put(asio::buffer(buffer_.data().data(), facts_.bytes), error);
  buffer_.consume(facts_.bytes);
  if (error || !parser_->is_header_done())
    return refuse_and_close(bad_request("The head is malformed", "bad_request"));
  parser_->body_limit(static_cast<std::uint64_t>(io_.shared().limits.max_body_bytes));

  const auto& message = parser_->get();
  unrecorded_ = true;
  body_received_ = 0;
  answer_bytes_ = 0;
  stream_failed_ = false;
  method_ = as_view(message.method_string());
  target_ = path_of(as_view(message.target())).substr(0, 256);
  keep_alive_ = !facts_.http10 && message.keep_alive();
  request_id_ = sane_request_id(as_view(message["x-request-id"]));
  if (request_id_.empty()) request_id_ = io_.fresh_request_id();
  admission_ = io_.shared().desk.admit({.method = method_,
                                        .target = as_view(message.target()),
                                        .authorization = as_view(message["Authorization"]),
                                        .content_type = as_view(message["Content-Type"]),
                                        .encoded = facts_.encoded},
                                       pages_, open_);
  return begin_body();
}

bool Connection::begin_body() {
  const std::uint64_t length = facts_.content_length.value_or(0);
  const auto limit = static_cast<std::uint64_t>(io_.shared().limits.max_body_bytes);
  const bool wait_for_it = !facts_.chunked && length <= kDiscardBytes && !facts_.expect_continue;
  if (!admission_.refusal.ok() && facts_.has_body() && !wait_for_it)
    return refuse_and_close(admission_.refusal);
  if (length > limit) {
    return refuse_and_close({Code::too_large,
                             "The body has " + std::to_string(length) + " bytes; at most " +
                                 std::to_string(limit) + " are allowed",
                             {},
                             "request_too_large"});
  }
  if (facts_.expect_continue && facts_.has_body() && !facts_.http10 && buffer_.size() == 0) {
    out_.append("HTTP/1.1 100 Continue\r\n\r\n");
  }
  enter(Phase::body);
  return true;
}

bool Connection::read_body() {
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) return false;
    beast::error_code error;
    const std::size_t n = parser_->put(buffer_.data(), error);
    buffer_.consume(n);
    body_received_ += n;
    if (error == beast::http::error::body_limit) {
      const std::string limit = std::to_string(io_.shared().limits.max_body_bytes);
      return refuse_and_close(
          {Code::too_large, "The body has more than " + limit + " bytes", {}, "request_too_large"});
    }
    if (error && error != beast::http::error::need_more) {
      return refuse_and_close(bad_request("The chunks of the body are malformed", "bad_framing"));
    }
    if (n > 0) continue;
    // An unfinished chunk header; no honest one is so long.
    if (buffer_.size() < kPipelineBytes) return false;
    return refuse_and_close(bad_request("A chunk header of the body is too long", "bad_framing"));
  }
  return finish_request();
}

bool Connection::finish_request() {
  enter(Phase::waiting);
  if (!admission_.refusal.ok()) {
    parser_.reset();
    answer_refusal(admission_.refusal);
    return true;
  }
  Shared& shared = io_.shared();
  auto outcome = shared.desk.handle(admission_, parser_->get().body(), request_id_, shared.draining);
  parser_.reset();
  if (auto* output = std::get_if<Output>(&outcome)) {
    answer(std::move(*output));
    return true;
  }
  Call& call = std::get<Call>(outcome);
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
      if (phase_ == Phase::streaming) {  // an answer has one beginning: the rest can only be an event
        append_stream("data: " + output.body + "\n\ndata: [DONE]\n\n");
        take({.exchange_id = output.exchange_id, .kind = Output::Kind::end, .failed = true});
      } else {
        answer(std::move(output));
      }
      return;
    case Output::Kind::head:
      if (phase_ == Phase::waiting) begin_stream(output.headers);
      return;
    case Output::Kind::data:
      if (phase_ == Phase::waiting) begin_stream({});
      append_stream(output.body);
      if (unsent() > static_cast<std::size_t>(io_.shared().limits.max_stream_buffer_bytes)) {
        write();
        if (unsent() > static_cast<std::size_t>(io_.shared().limits.max_stream_buffer_bytes)) abort();
      }
      return;
    case Output::Kind::end:
      if (phase_ == Phase::waiting) begin_stream({});
      if (!facts_.http10) out_.append(kLastChunk);
      stream_failed_ = output.failed;
      end_answer(200);
      return;
  }
}

void Connection::append_stream(std::string_view bytes) {
  answer_bytes_ += bytes.size();
  if (facts_.http10) {
    out_.append(bytes);
  } else {
    append_chunk(out_, bytes);
  }
}

void Connection::begin_stream(const std::vector<std::pair<std::string, std::string>>& extra) {
  keep_alive_ = keep_alive_ && !io_.shared().draining;
  append_response_head(out_,
                       {.content_type = "text/event-stream; charset=utf-8",
                        .request_id = request_id_,
                        .date = io_.date(),
                        .chunked = !facts_.http10,
                        .close = !keep_alive_,
                        .stream = true},
                       extra);
  enter(Phase::streaming);
}

void Connection::answer(Output&& output) {
  keep_alive_ = keep_alive_ && !io_.shared().draining;
  append_response_head(out_,
                       {.status = output.status,
                        .content_type = content_type(output.content),
                        .request_id = request_id_,
                        .date = io_.date(),
                        .allow = output.status == 405 ? admission_.allow : std::string_view(),
                        .content_length = output.body.size(),
                        .close = !keep_alive_},
                       output.headers);
  if (method_ != "HEAD") {
    out_.append(output.body);
    answer_bytes_ = output.body.size();
  }
  end_answer(output.status);
}

void Connection::answer_refusal(const Status& status) { answer(error_output(0, status)); }

void Connection::end_answer(std::uint16_t status) {
  if (exchange_.id != 0) {
    io_.close_exchange(std::exchange(exchange_, {}));
    ++unsettled_;
  }
  record(status);
  enter(keep_alive_ ? Phase::idle : Phase::lingering);
}

// For what arrived cannot be trusted or is not wanted: the rest of the input is no request.
bool Connection::refuse_and_close(const Status& status) {
  if (!unrecorded_) {  // the head was not even read
    unrecorded_ = true;
    method_.clear();
    target_.clear();
    request_id_ = io_.fresh_request_id();
  }
  parser_.reset();
  keep_alive_ = false;
  answer_refusal(status);
  return true;
}

void Connection::record(std::uint16_t status) {
  if (!std::exchange(unrecorded_, false)) return;
  io_.shared().backend.answered({.request_id = request_id_,
                                 .method = method_,
                                 .target = target_,
                                 .status = status,
                                 .failed = stream_failed_,
                                 .bytes = answer_bytes_,
                                 .duration = Clock::now() - request_since_});
}

// ---- Writing and ending -----------------------------------------------------------------------------

void Connection::flush() {
  guarded([&] {
    write();
    if (phase_ == Phase::idle && buffer_.size() > 0) progress();
  });
}

void Connection::write() {
  while (unsent() > 0 && !awaiting_room_ && phase_ != Phase::closed) {
    boost::system::error_code error;
    const std::size_t n = socket_.write_some(asio::buffer(out_.data() + out_sent_, unsent()), error);
    if (error == asio::error::interrupted) continue;
    if (error == asio::error::would_block) {
      out_.erase(0, std::exchange(out_sent_, 0));
      awaiting_room_ = true;
      written_at_ = Clock::now();
      socket_.async_wait(Socket::wait_write, [self = shared_from_this()](boost::system::error_code failed) {
        self->awaiting_room_ = false;
        if (!failed && self->phase_ != Phase::closed) self->flush();
      });
      return;
    }
    if (error) {
      abort();
      return;
    }
    out_sent_ += n;
  }
  if (unsent() > 0) return;
  out_sent_ = 0;
  out_.clear();
  settle();
  if (phase_ == Phase::lingering) shut();
  if (phase_ == Phase::idle) {
    if (out_.capacity() > kKeptCapacity) std::string().swap(out_);
    if (buffer_.size() == 0 && buffer_.capacity() > kKeptCapacity) buffer_.shrink_to_fit();
  }
}

void Connection::settle() { io_.settle(std::exchange(unsettled_, 0)); }

void Connection::enter(Phase phase) {
  phase_ = phase;
  phase_since_ = Clock::now();
}

// Closing at once would reset the connection under unread input and could destroy the answer on its way.
void Connection::shut() {
  if (std::exchange(shut_, true)) return;
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
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

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  settle();
  boost::system::error_code ignored;
  socket_.close(ignored);
  io_.remove(shared_from_this());
}

void Connection::tick(TimePoint now) {
  const config::LimitOptions& limits = io_.shared().limits;
  const auto elapsed = now - phase_since_;
  if (awaiting_room_ && now - written_at_ > seconds(limits.write_timeout_s)) {
    abort();
    return;
  }
  switch (phase_) {
    case Phase::idle:
      if (elapsed > seconds(limits.idle_timeout_s) && unsent() == 0) close();
      return;
    case Phase::head:
      if (elapsed <= seconds(limits.header_timeout_s)) return;
      if (buffer_.size() == 0) {
        close();
      } else {
        refuse_and_close(timed_out("The headers did not arrive", limits.header_timeout_s));
      }
      break;
    case Phase::body: {
      if (elapsed <= seconds(limits.body_timeout_s)) return;
      const double elapsed_s = std::chrono::duration<double>(elapsed).count();
      if (static_cast<double>(body_received_) >= elapsed_s * limits.min_body_rate) return;
      refuse_and_close(timed_out("The body did not arrive", limits.body_timeout_s));
      break;
    }
    case Phase::lingering:
      if (unsent() == 0 && elapsed > kLingerTime) close();
      return;
    case Phase::waiting:
    case Phase::streaming:
    case Phase::closed: return;
  }
  flush();
}

}  // namespace troupe::http
