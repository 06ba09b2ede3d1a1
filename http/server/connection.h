#pragma once
// One client socket and the requests on it, one at a time, in order. Lives on one I/O thread and is touched
// by no other. Private to server.cpp and connection.cpp. It moves between the phases; what it knows and does
// in them has classes of its own: RequestReader and CurrentRequest, CurrentAnswer and ResponseWriter,
// OpenExchange and ParseHandOver, ConnectionPermit and MemoryShare, check_deadlines().
//
//   idle → head → body → waiting ─────────────→ idle (keep-alive) or lingering → closed
//                           └──→ streaming ──────┘
//
// Bytes that arrive while an answer is pending (a pipelined request) stay in the reader, up to a bound; a
// read is pending all the same, so a client that leaves is noticed at once and its request is cancelled.
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "http/server/connection_deadlines.h"
#include "http/server/connection_permit.h"
#include "http/server/current_answer.h"
#include "http/server/current_request.h"
#include "http/server/io_thread.h"
#include "http/server/memory_share.h"
#include "http/server/open_exchange.h"
#include "http/server/parse_hand_over.h"
#include "http/server/request_reader.h"
#include "http/server/response_writer.h"
#include "http/server/transport.h"

namespace troupe::http {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoThread& io, Transport transport, ConnectionPermit permit);

  void start();
  /// Appends to the answer in progress; call flush() after the last output of a batch.
  void take(Output&& output);
  /// Writes what is queued, and continues with input that came meanwhile.
  void flush();
  /// Enforces deadlines; called a few times a second.
  void tick(TimePoint now);
  /// True when no request is in progress and none has begun: may be closed when draining.
  bool resting() const { return phase_ == Phase::idle && reader_.buffered() == 0 && writer_.unsent() == 0; }
  /// Closes at once; cancels the request in progress.
  void abort() noexcept;
  /// For a client that reads too slowly: cancels the request in progress and frees what is unsent of it. A
  /// stream ends with an error event; a whole answer with the connection.
  void cut();
  std::size_t unsent() const { return writer_.unsent(); }
  /// Of a connection beyond a limit: says so and closes at once.
  void turn_away();

 private:
  void await_input();
  void on_input();
  void progress();
  bool step();
  bool read_head();
  void check_limits();
  bool begin_body();
  bool read_body();
  bool finish_request();
  void parse_apart();
  void take_parsed(Exchange exchange, ParseHandOver::Outcome&& outcome);
  bool handled(ParseHandOver::Outcome&& outcome);
  void count_held();
  void count_unsent();
  std::optional<std::uint64_t> taken_lately(TimePoint now);

  void answer(Output&& output);
  AnswerHead answer_head();
  void end_answer(std::uint16_t status);
  bool refuse_and_close(const Status& status);
  void write();
  void enter(Phase phase);
  void begin_head();
  void shut();
  void close() noexcept;
  void record(std::uint16_t status);
  /// An exception is a lack of memory or a bug: it ends this connection and no other.
  template <class Action>
  void guarded(Action action) {
    if (!io_.shared().faults.contain(FaultPlace::connection, action)) abort();
  }
  bool answering() const { return phase_ == Phase::waiting || phase_ == Phase::streaming; }

  IoThread& io_;
  Transport transport_;
  ConnectionPermit permit_;
  RequestReader reader_;
  ResponseWriter writer_;
  MemoryShare memory_;

  Phase phase_ = Phase::head;
  TimePoint phase_since_{};
  TimePoint blocked_since_{};  // of awaiting_room_
  bool awaiting_input_ = false;
  bool awaiting_error_ = false;
  bool awaiting_room_ = false;  // the socket takes no bytes
  bool progressing_ = false;    // progress() is running: it is not re-entrant
  bool shut_ = false;           // our side has ended the connection for writing
  std::size_t discarded_ = 0;

  CurrentRequest request_;
  CurrentAnswer answer_;
  OpenExchange exchange_;
  ParseHandOver parsing_;
  bool keep_alive_ = true;  // after the request in progress
  Pace receiving_;
  Pace taking_;
};

}  // namespace troupe::http
