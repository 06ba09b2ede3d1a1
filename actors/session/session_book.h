#pragma once
// The open sessions of one SESSION HOST, which session each sequence belongs to, and what the engine that
// runs now has been given of them. Pure: what has to be sent is left in Effects.
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/link_messages.h"
#include "actors/session/quarantine.h"
#include "actors/session/session.h"
#include "base/contain.h"

namespace troupe {

/// Used by one thread. Every call appends to the Effects that the caller then carries out. A session that
/// throws fails with an internal error; what it had appended before stays.
class SessionBook {
 public:
  /// `quarantine` is the same for all SESSION HOSTs of the engine; null: there is only this one.
  SessionBook(std::shared_ptr<const SessionContext> context, KeySource keys, Log log = {},
              std::shared_ptr<Quarantine> quarantine = nullptr)
      : context_(std::move(context)),
        keys_(std::move(keys)),
        log_(std::move(log)),
        quarantine_(quarantine ? std::move(quarantine) : std::make_shared<Quarantine>()) {}

  /// Opens a session. The exchange's id must not be open yet.
  void open(Ask ask);

  /// The session's job for a TOKENIZER, once; nothing when the session is not open any more.
  std::optional<Encode> take_encode(std::uint64_t exchange);

  /// Prompts of an open session; returns submit().
  Submit encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects);

  /// What GRAMMAR has to compile before submit(), once for each engine. Nothing when the session needs no
  /// grammar, is not ready, or no engine is up.
  std::optional<Compile> take_compile(std::uint64_t exchange);

  /// The answer to take_compile(), given by the engine that runs now; returns submit().
  Submit compiled(std::uint64_t exchange, const Compiled& compiled, std::int64_t now_ns, Effects& effects);

  /// There will be no answer to take_compile(): the engine is ending.
  void compile_lost(std::uint64_t exchange);

  /// The session's sequences for the engine, once for each engine. Nothing when the session is not ready, no
  /// engine is up, the session needs a grammar first, or has to run alone and another one does: then
  /// waiting() names it.
  Submit submit(std::uint64_t exchange, std::int64_t now_ns, Effects& effects);

  bool waits() const { return !waiting_.empty(); }
  /// Exchanges to submit() again soon, in order of arrival: they wait to run alone.
  std::vector<std::uint64_t> waiting() const;

  /// An engine is up: returns the exchanges to take_compile() or submit(), in order of arrival. An earlier
  /// engine has ended. Nothing happens when the epoch is older than that of the last engine, or that
  /// engine's.
  std::vector<std::uint64_t> engine_up(std::uint32_t epoch, std::int64_t now_ns, Effects& effects);

  /// The engine of this epoch has ended; its sessions go on in the next, but those that seem to end engines
  /// fail. Nothing happens when it was known, or the epoch is older.
  void engine_down(std::uint32_t epoch, std::int64_t now_ns, Effects& effects);

  /// The epoch of the engine that runs now; nothing between two.
  std::optional<std::uint32_t> engine() const { return up_ ? epoch_ : std::nullopt; }

  /// The engine has refused the session's submission of this number.
  void refused(const Refused& refused, std::int64_t now_ns, Effects& effects);

  /// Entries of StepTokens that were dropped so far: of another attempt, or not the next ones of their
  /// sequence.
  std::uint64_t dropped() const { return dropped_; }

  /// One step's tokens of all sessions.
  void take(const StepTokens& step, std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// Goes on with an answer that Effects::unfinished has named.
  void resume(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects);

  /// The request cannot go on (its TOKENIZER or its grammar has failed).
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
    std::size_t sequence = 0;  ///< its place in Session::sequences()
  };
  struct Open {
    std::unique_ptr<Session> session;
    std::string request_id;
    std::int64_t arrived_ns = 0;
    Quarantine::Request self;
    bool compiling = false;     ///< take_compile() has not been answered
    bool alone = false;         ///< it has the place in quarantine
    std::uint64_t touched = 0;  ///< number of the last take() that brought it tokens
  };
  using Arrival = std::pair<std::int64_t, std::uint64_t>;  ///< when an exchange arrived

  /// Does `work` for a session; a session that throws fails with that, the others go on. False then.
  template <class Work>
  bool contained(std::uint64_t exchange, std::int64_t now_ns, Effects& effects, Work&& work) {
    const Status fault = contain(log_, "session", request_of(exchange), std::forward<Work>(work));
    if (!fault.ok()) fail(exchange, fault, now_ns, effects);
    return fault.ok();
  }
  std::string_view request_of(std::uint64_t exchange) const;
  void settle(std::uint64_t exchange);
  void leave_quarantine(Open& open);

  std::shared_ptr<const SessionContext> context_;
  KeySource keys_;
  Log log_;
  std::unordered_map<std::uint64_t, Open> sessions_;  ///< by exchange
  std::unordered_map<RequestKey, Place> places_;
  std::vector<std::uint64_t> touched_;  ///< exchanges that the current take() has to flush
  std::vector<std::uint64_t> closed_;
  std::uint64_t takes_ = 0;
  std::uint64_t dropped_ = 0;

  std::shared_ptr<Quarantine> quarantine_;
  std::optional<std::uint32_t> epoch_;  ///< of the last engine
  bool up_ = false;                     ///< it has not ended
  std::set<Arrival> waiting_;           ///< for the place in quarantine
};

}  // namespace troupe
