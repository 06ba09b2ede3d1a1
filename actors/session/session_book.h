#pragma once
// The open sessions of one SESSION HOST, which session each sequence belongs to, which engine each session
// has been given to, and what the present process of that engine has been given of it. Pure: what has to be
// sent is left in Effects.
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/link_messages.h"
#include "actors/session/engine_process.h"
#include "actors/session/engine_router.h"
#include "actors/session/quarantine.h"
#include "actors/session/session.h"
#include "base/contain.h"

namespace troupe {

/// Used by one thread. Every call appends to the Effects that the caller then carries out. A session that
/// throws fails with an internal error; what it had appended before stays.
class SessionBook {
 public:
  /// `quarantine` and `router` are the same for all SESSION HOSTs of the front; null: there is only this one.
  SessionBook(std::shared_ptr<const SessionContext> context, KeySource keys, Log log = {},
              std::shared_ptr<Quarantine> quarantine = nullptr,
              std::shared_ptr<EngineRouter> router = nullptr)
      : context_(std::move(context)),
        keys_(std::move(keys)),
        log_(std::move(log)),
        quarantine_(quarantine ? std::move(quarantine) : std::make_shared<Quarantine>()),
        router_(router ? std::move(router) : std::make_shared<EngineRouter>(EngineRouter::Setup())) {}

  /// Opens a session. The exchange's id must not be open yet.
  void open(Ask ask);

  /// The session's images and videos for MEDIA, once; nothing when it has none or is not open any more.
  std::optional<MeasureMedia> take_media(std::uint64_t exchange);

  /// The answer to take_media(). True when the session is open still, and its text is next.
  bool measured(std::uint64_t exchange, MeasuredMedia media, std::int64_t now_ns, Effects& effects);

  /// Bytes that a TOKENIZER has to read for the session, about.
  std::int64_t text_bytes(std::uint64_t exchange) const;

  /// True for a request of a batch.
  bool background(std::uint64_t exchange) const;

  /// The session's job for a TOKENIZER, once; nothing when the session is not open any more.
  std::optional<Encode> take_encode(std::uint64_t exchange);

  /// Prompts of an open session; returns submit().
  Submit encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects);

  /// Whether MEDIA has to decode the session's images before submit(). True once.
  bool take_prepare(std::uint64_t exchange);

  /// The answer to that; returns submit().
  Submit prepared(std::uint64_t exchange, MediaReady media, std::int64_t now_ns, Effects& effects);

  /// What GRAMMAR of engine_of() has to compile before submit(), once for each process of an engine. Nothing
  /// when the session needs no grammar, is not ready, or no engine is up for it.
  std::optional<Compile> take_compile(std::uint64_t exchange);

  /// The answer to take_compile(), given by the process that was engine_of() then and runs now; returns
  /// submit(). An answer of another process than that of the last take_compile() is dropped. What a prefill
  /// instance cannot compile is to be given to another engine by take_compile().
  Submit compiled(std::uint64_t exchange, const EngineProcess& by, const Compiled& compiled,
                  std::int64_t now_ns, Effects& effects);

  /// There will be no answer to take_compile(): the engine is ending.
  void compile_lost(std::uint64_t exchange);

  /// The session's sequences for engine_of(), once for each process of an engine. Nothing when the session is
  /// not ready, no engine is up for it, it needs a grammar first, or has to run alone and another one does:
  /// then waiting() names it.
  Submit submit(std::uint64_t exchange, std::int64_t now_ns, Effects& effects);

  bool waits() const { return !waiting_.empty(); }
  /// Exchanges to submit() again soon, in order of arrival: they wait to run alone.
  std::vector<std::uint64_t> waiting() const;

  /// A process of an engine is up: returns the exchanges to take_compile() or submit(), in order of arrival.
  /// The engine's earlier process has ended. Nothing happens when the epoch is older than that of its last
  /// process, or that process's.
  std::vector<std::uint64_t> engine_up(const EngineProcess& process, std::int64_t now_ns, Effects& effects);

  /// The engine's process of this or an earlier epoch has ended. Its sessions wait for its next one, but
  /// those that seem to end engines fail. Nothing happens when it was known. Nobody waits for a prefill
  /// instance: stop_waiting() is next.
  void engine_down(const EngineProcess& process, std::int64_t now_ns, Effects& effects);

  /// What waits for a process of this or a later epoch waits for no certain engine any more: returns the
  /// exchanges to take_compile() or submit(), in order of arrival. Nothing happens when one has come.
  std::vector<std::uint64_t> stop_waiting(const EngineProcess& process);

  /// Takes sessions back from prefill instances that have given no sign of life for long, where another
  /// engine can have them: returns the exchanges to take_compile() or submit(), in order of arrival. Call it
  /// about once a second.
  std::vector<std::uint64_t> leave_silent(std::int64_t now_ns, Effects& effects);

  /// Prompts of which an engine copies blocks while another computes them.
  struct Expected {
    EngineProcess engine;
    std::vector<ExpectBlocks> prompts;
  };
  /// Of a submission that a prefill instance is to hand over: what the engine that it will go on at, as it
  /// looks now, is to expect from now on.
  std::optional<Expected> expect(const Submit& submission);
  /// Since the last call: prompts that an engine need not expect any more, as their sessions have closed or
  /// go on at others.
  struct Forgotten {
    EngineProcess engine;
    ForgetBlocks prompts;
  };
  std::vector<Forgotten> take_forgotten() { return std::exchange(forgotten_, {}); }

  /// The process that has the session's sequences or is to get them; nothing when it is not up, or the
  /// session has not been given to an engine.
  std::optional<EngineProcess> engine_of(std::uint64_t exchange) const;

  /// Whether this is the present process of its engine.
  bool runs(const EngineProcess& process) const { return process_of(process.engine) == process; }
  /// The present process of an engine; nothing between two.
  std::optional<EngineProcess> process_of(std::uint32_t engine) const;

  /// The engine has refused the session's submission of this number. True: another engine may take it, and
  /// the session is to be given to it by take_compile() or submit().
  bool refused(const Refused& refused, std::int64_t now_ns, Effects& effects);

  /// Entries of StepTokens that were dropped so far: of another attempt, or not the next ones of their
  /// sequence.
  std::uint64_t dropped() const { return dropped_; }

  /// The session's submission of this number goes on with what a prefill instance has handed over.
  bool is_handed_over(std::uint64_t exchange, std::uint32_t attempt) const;

  bool is_prefill(std::uint32_t engine) const { return router_->is_prefill(engine); }

  /// One step's tokens of all sessions. Those that Effects::handed_over names have no engine any more.
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
    std::optional<std::uint32_t> engine;     ///< that it was given to
    EngineRouter::Place at_engine;           ///< likewise
    std::optional<EngineProcess> expecting;  ///< it was told to expect the prompts
    std::vector<std::uint32_t> refused_by;   ///< engines without room for it
    bool compiling = false;                  ///< take_compile() has not been answered
    bool alone = false;                      ///< it has the place in quarantine
    std::uint64_t touched = 0;               ///< number of the last take() that brought it tokens
  };
  using Arrival = std::pair<std::int64_t, std::uint64_t>;  ///< when an exchange arrived
  struct Engine {
    std::optional<std::uint32_t> epoch;  ///< of its last process
    bool up = false;                     ///< that has not ended
    std::int64_t silent_ns = 0;  ///< when it was first found to give no sign of life; 0: it gives some
  };

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
  std::vector<std::uint32_t> candidates(const Open& open) const;
  bool give_to_engine(Open& open);
  bool refused_by_engine(Open& open);
  static void take_from_engine(Open& open);
  void forget_expected(Open& open);
  Engine& at(std::uint32_t engine);

  std::shared_ptr<const SessionContext> context_;
  KeySource keys_;
  Log log_;
  std::unordered_map<std::uint64_t, Open> sessions_;  ///< by exchange
  std::unordered_map<RequestKey, Place> places_;
  std::vector<std::uint64_t> touched_;  ///< exchanges that the current take() has to flush
  std::vector<std::uint64_t> closed_;
  std::vector<Forgotten> forgotten_;
  std::uint64_t takes_ = 0;
  std::uint64_t dropped_ = 0;

  std::shared_ptr<Quarantine> quarantine_;
  std::shared_ptr<EngineRouter> router_;
  std::vector<Engine> engines_;  ///< by index
  std::set<Arrival> waiting_;    ///< for the place in quarantine
};

}  // namespace troupe
