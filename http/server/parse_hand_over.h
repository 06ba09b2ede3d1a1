#pragma once
// Large bodies, on their way from an I/O thread to a ParseThread and back. Parsed on the I/O thread, many
// that come at once would delay what else it has to send. Private to connection.cpp.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "http/server/backend.h"
#include "http/server/io_thread.h"
#include "http/server/request_handler.h"

namespace troupe::http {

/// Hands the bodies of one connection over, one at a time. Used by the connection's I/O thread; lost() by
/// any.
class ParseHandOver {
 public:
  /// The call for the backend, or the answer.
  using Outcome = std::variant<Call, Output>;

  struct Job {
    Call known;  ///< of CurrentRequest::describe()
    Admission admission;
    std::string body;
  };

  /// `shared` outlives it.
  explicit ParseHandOver(Shared& shared) : shared_(shared) {}

  /// True for a body that is to be parsed on another thread.
  static bool wants(std::size_t body_bytes);

  /// Has the body parsed. `take(Outcome&&)` is called on the thread of
  /// `io` then, or lost() becomes true. `take` is copyable and keeps this alive.
  template <class Take>
  void start(boost::asio::io_context& io, Job job, Take take);

  /// An outcome could not be passed on, for want of memory: nothing follows for its request.
  bool lost() const { return lost_; }

  /// Frees a call whose client has left. A large one takes time to free, so that is done on another thread,
  /// too.
  void discard(Call&& call);

 private:
  ParseThread& thread_for(std::size_t body_bytes);
  Status parse(Job& job, std::optional<Outcome>& outcome);
  static Outcome outcome_or_error(std::optional<Outcome>& outcome, const Status& status, const Job& job);

  Shared& shared_;
  std::atomic<bool> lost_{false};  // set by the parsing thread
};

template <class Take>
void ParseHandOver::start(boost::asio::io_context& io, Job job, Take take) {
  ParseThread& thread = thread_for(job.body.size());
  thread.post([this, here = io.get_executor(), job = std::move(job), take = std::move(take)]() mutable {
    std::optional<Outcome> outcome;
    const Status status = parse(job, outcome);
    const auto hand_back = [&] {
      boost::asio::post(here, [take, result = outcome_or_error(outcome, status, job)]() mutable {
        take(std::move(result));
      });
    };
    if (!shared_.faults.contain(FaultPlace::parsing, hand_back)) lost_ = true;
  });
}

}  // namespace troupe::http
