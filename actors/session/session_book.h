#pragma once
// The open sessions of one SESSION HOST, and which session each sequence belongs to. Pure: what has to be sent
// is left in Effects.
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/session/session.h"
#include "base/contain.h"

namespace troupe {

/// Used by one thread. Every call appends to the Effects that the caller then carries out. A session that throws fails
/// with an internal error; what it had appended before stays.
class SessionBook {
 public:
  SessionBook(std::shared_ptr<const SessionContext> context, KeySource keys, Log log = {})
      : context_(std::move(context)), keys_(std::move(keys)), log_(std::move(log)) {}

  /// Opens a session. The exchange's id must not be open yet.
  void open(Ask ask);

  /// The session's job for a TOKENIZER, once; nothing when the session is not open any more.
  std::optional<Encode> take_encode(std::uint64_t exchange);

  /// Prompts of an open session; returns what goes to the SCHEDULER (perhaps nothing).
  Submit encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects);

  /// What GRAMMAR has to compile before `submit` of encoded() goes to the SCHEDULER: the book keeps it until compiled().
  /// Nothing when it may go at once.
  std::optional<Compile> hold(std::uint64_t exchange, Submit& submit);

  /// The answer to hold(): returns what goes to the SCHEDULER (perhaps nothing).
  Submit compiled(std::uint64_t exchange, const Compiled& compiled, std::int64_t now_ns, Effects& effects);

  /// One step's tokens of all sessions.
  void take(const StepTokens& step, std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// Goes on with an answer that Effects::unfinished has named.
  void resume(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// The request cannot go on (refused by the SCHEDULER, TOKENIZER dead).
  void fail(std::uint64_t exchange, const Status& status, std::int64_t now_ns, Effects& effects);
  /// The request's timeout is over; nothing happens when it is closed.
  void expire(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects);
  void fail_all(const Status& status, std::int64_t now_ns, Effects& effects);
  void withdraw(std::uint64_t exchange, std::int64_t now_ns, Effects& effects);

  /// Exchanges that closed since the last call: their admission credits are free.
  std::vector<std::uint64_t> take_closed() { return std::exchange(closed_, {}); }

  std::size_t size() const { return sessions_.size(); }

 private:
  struct Place {
    std::uint64_t exchange = 0;
    std::size_t sequence = 0;  ///< its place in the Submit
  };
  struct Open {
    std::unique_ptr<Session> session;
    std::string request_id;
    std::vector<RequestKey> keys;
    Submit held;                ///< until its grammar is compiled
    std::uint64_t touched = 0;  ///< number of the last take() that brought it tokens
  };

  /// Does `work` for a session; a session that throws fails with that, the others go on. False then.
  template <class Work>
  bool attempt(std::uint64_t exchange, std::int64_t now_ns, Effects& effects, Work&& work) {
    const Status fault = contain(log_, "session", request_of(exchange), std::forward<Work>(work));
    if (!fault.ok()) fail(exchange, fault, now_ns, effects);
    return fault.ok();
  }
  std::string_view request_of(std::uint64_t exchange) const;
  void settle(std::uint64_t exchange);

  std::shared_ptr<const SessionContext> context_;
  KeySource keys_;
  Log log_;
  std::unordered_map<std::uint64_t, Open> sessions_;  ///< by exchange
  std::unordered_map<RequestKey, Place> places_;
  std::vector<std::uint64_t> touched_;  ///< exchanges that the current take() has to flush
  std::vector<std::uint64_t> closed_;
  std::uint64_t takes_ = 0;
};

}  // namespace troupe
