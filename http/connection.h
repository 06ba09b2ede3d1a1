#pragma once
// One client socket and the requests on it, one at a time, in order. Lives on one I/O thread and is touched
// by no other. Private to server.cpp and connection.cpp.
//
//   idle → head → body → waiting ─────────────→ idle (keep-alive) or lingering → closed
//                           └──→ streaming ──────┘
//
// Bytes that arrive while an answer is pending (a pipelined request) stay in the buffer, up to a bound; a
// read is pending all the same, so a client that leaves is noticed at once and its request is cancelled.
// Writing is tried directly; only what the kernel does not take is kept and written when it can be.
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "http/io_thread.h"
#include "http/request_head.h"

namespace troupe::http {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `open`: no key is asked for.
  Connection(IoThread& io, Socket socket, std::string address, Pages pages, bool open);
  ~Connection();

  void start();
  /// Appends to the answer in progress; call flush() when the batch is through.
  void take(Output&& output);
  /// Writes what is queued, and goes on with what the client has sent meanwhile.
  void flush();
  /// Enforces deadlines; called a few times a second.
  void tick(TimePoint now);
  /// No request is in progress and none has begun: may be closed when draining.
  bool resting() const { return phase_ == Phase::idle && buffer_.size() == 0 && unsent() == 0; }
  /// Closes at once; cancels the request in progress.
  void abort();

 private:
  enum class Phase { idle, head, body, waiting, streaming, lingering, closed };
  struct Parser;

  void await_input();
  void on_input();
  void progress();
  bool step();
  bool scan_head();
  bool begin_request();
  bool begin_body();
  bool read_body();
  bool finish_request();

  void answer(Output&& output);
  void begin_stream(const std::vector<std::pair<std::string, std::string>>& extra);
  void end_answer(std::uint16_t status);
  void answer_refusal(const Status& status);
  bool refuse_and_close(const Status& status);
  void append_stream(std::string_view bytes);
  void write();
  void enter(Phase phase);
  void shut();
  void close();
  void settle();
  void record(std::uint16_t status);
  template <class Action>
  void guarded(Action action);
  bool answering() const { return phase_ == Phase::waiting || phase_ == Phase::streaming; }
  std::size_t unsent() const { return out_.size() - out_sent_; }

  IoThread& io_;
  Socket socket_;
  const std::string address_;
  const Pages pages_;
  const bool open_;

  Phase phase_ = Phase::head;
  TimePoint phase_since_{};
  boost::beast::flat_buffer buffer_;
  bool awaiting_input_ = false;
  bool awaiting_error_ = false;
  bool progressing_ = false;
  bool shut_ = false;  // our side said it will send no more
  std::size_t discarded_ = 0;

  HeadScanner scanner_;
  std::unique_ptr<Parser> parser_;
  HeadFacts facts_;
  Admission admission_;
  std::string request_id_;
  std::string method_;
  std::string target_;
  TimePoint request_since_{};
  std::size_t body_received_ = 0;
  bool keep_alive_ = true;

  Exchange exchange_{};        // id 0: none
  std::size_t unsettled_ = 0;  // closed exchanges whose answers are not all sent
  bool unrecorded_ = false;    // a request has begun that no AccessRecord tells of yet
  std::uint64_t answer_bytes_ = 0;
  bool stream_failed_ = false;

  std::string out_;
  std::size_t out_sent_ = 0;
  bool awaiting_room_ = false;
  TimePoint written_at_{};
};

}  // namespace troupe::http
