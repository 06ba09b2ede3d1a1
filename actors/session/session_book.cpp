#include "actors/session/session_book.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

/// Prefill instances that have given no sign of life for so long, after the time in which EngineRouter takes
/// one to be slow, are not waited for.
constexpr std::int64_t kSilence = 900'000'000;

Status poison() {
  return {Code::internal,
          "Engines ended again and again while they worked on this request, the last time while they worked "
          "on it alone: "
          "it is not tried again.",
          {},
          "poison_request"};
}

std::vector<std::uint64_t> exchanges(const std::set<std::pair<std::int64_t, std::uint64_t>>& arrivals) {
  std::vector<std::uint64_t> out;
  for (const auto& [arrived_ns, exchange] : arrivals) out.push_back(exchange);
  return out;
}

}  // namespace

void SessionBook::open(Ask ask) {
  const std::uint64_t exchange = ask.exchange;
  std::string request_id = ask.request_id;
  const std::int64_t arrived_ns = ask.arrived_ns;
  const Quarantine::Request self{ask.io, exchange};
  auto session = std::make_unique<Session>(context_, std::move(ask));
  Open& open = sessions_[exchange];
  open.session = std::move(session);
  open.request_id = std::move(request_id);
  open.arrived_ns = arrived_ns;
  open.self = self;
}

std::optional<MeasureMedia> SessionBook::take_media(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  return it == sessions_.end() ? std::nullopt : it->second.session->take_media();
}

bool SessionBook::measured(std::uint64_t exchange, MeasuredMedia media, std::int64_t now_ns,
                           Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return false;
  if (!contained(exchange, now_ns, effects,
                 [&] { it->second.session->measured(std::move(media), now_ns, effects); }))
    return false;
  settle(exchange);
  return sessions_.contains(exchange);
}

std::int64_t SessionBook::text_bytes(std::uint64_t exchange) const {
  const auto it = sessions_.find(exchange);
  return it == sessions_.end() ? 0 : it->second.session->text_bytes();
}

bool SessionBook::background(std::uint64_t exchange) const {
  const auto it = sessions_.find(exchange);
  return it != sessions_.end() && it->second.session->background();
}

std::optional<Encode> SessionBook::take_encode(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return std::nullopt;
  return it->second.session->take_encode();
}

Submit SessionBook::encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return {};
  Session& session = *it->second.session;
  const bool done = contained(exchange, now_ns, effects, [&] {
    session.encoded(std::move(encoded), keys_, now_ns, effects);
    for (std::size_t i = 0; i < session.sequences().size(); ++i)
      places_[session.sequences()[i].key] = {exchange, i};
  });
  if (!done) return {};
  settle(exchange);
  return submit(exchange, now_ns, effects);
}

bool SessionBook::take_prepare(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  return it != sessions_.end() && it->second.session->take_prepare();
}

Submit SessionBook::prepared(std::uint64_t exchange, MediaReady media, std::int64_t now_ns,
                             Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return {};
  if (!contained(exchange, now_ns, effects,
                 [&] { it->second.session->prepared(std::move(media), now_ns, effects); }))
    return {};
  settle(exchange);
  return submit(exchange, now_ns, effects);
}

std::optional<Compile> SessionBook::take_compile(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return std::nullopt;
  const Session& session = *it->second.session;
  if (!session.ready() || !session.needs_grammar() || it->second.compiling) return std::nullopt;
  if (!give_to_engine(it->second)) return std::nullopt;
  it->second.compiling = true;
  return session.compile_job();
}

Submit SessionBook::compiled(std::uint64_t exchange, const EngineProcess& by, const Compiled& compiled,
                             std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  // The client has left, or another engine compiles it by now.
  if (it == sessions_.end() || !it->second.compiling || it->second.engine != by.engine) {
    if (compiled.grammar != 0) effects.grammars.push_back({by.engine, compiled.grammar});
    return {};
  }
  it->second.compiling = false;
  if (!compiled.status.ok() && is_prefill(by.engine) && refused_by_engine(it->second)) {
    it->second.session->give_back();
    return {};
  }
  if (!contained(exchange, now_ns, effects, [&] { it->second.session->compiled(compiled, now_ns, effects); }))
    return {};
  settle(exchange);
  return submit(exchange, now_ns, effects);
}

void SessionBook::compile_lost(std::uint64_t exchange) {
  if (const auto it = sessions_.find(exchange); it != sessions_.end()) it->second.compiling = false;
}

Submit SessionBook::submit(std::uint64_t exchange, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return {};
  Open& open = it->second;
  if (!open.session->ready() || open.session->needs_grammar() || !give_to_engine(open)) return {};
  const bool alone = open.session->lives().suspect();
  if (alone && !quarantine_->enter(open.self, *process_of(*open.engine))) {
    waiting_.emplace(open.arrived_ns, exchange);
    return {};
  }
  open.alone = alone;
  waiting_.erase({open.arrived_ns, exchange});
  Submit submit;
  contained(exchange, now_ns, effects, [&] { submit = open.session->submission(alone); });
  return submit;
}

std::vector<std::uint64_t> SessionBook::waiting() const { return exchanges(waiting_); }

/// The engines that the session may be given to.
std::vector<std::uint32_t> SessionBook::candidates(const Open& open) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t engine = 0; engine < engines_.size(); ++engine) {
    const auto& refused = open.refused_by;
    if (!engines_[engine].up || std::find(refused.begin(), refused.end(), engine) != refused.end()) continue;
    out.push_back(engine);
  }
  // What all other engines that are up have refused is no prefill instance's.
  if (out.empty() || !is_prefill(out.front())) return out;
  for (std::uint32_t engine = 0; !is_prefill(engine); ++engine) {
    if (engines_[engine].up) return {};
  }
  return out;
}

/// False: its engine is not up, or none is.
bool SessionBook::give_to_engine(Open& open) {
  if (open.engine) return engines_[*open.engine].up;
  const std::vector<std::uint32_t> engines = candidates(open);
  if (engines.empty()) return false;
  open.engine = router_->choose(open.session->wanted(), engines, open.at_engine);
  open.session->give_to(*open.engine, open.at_engine.hands_over());
  if (open.expecting && open.expecting->engine != *open.engine) forget_expected(open);
  return true;
}

std::optional<SessionBook::Expected> SessionBook::expect(const Submit& submission) {
  const auto it = sessions_.find(submission.exchange);
  if (it == sessions_.end() || !submission.hands_over || !it->second.at_engine.hands_over()) return {};
  Open& open = it->second;
  const auto engine = process_of(open.at_engine.next_engine());
  if (!engine) return {};
  Expected expected{*engine, {}};
  for (const SequenceSpec& sequence : submission.sequences) {
    auto names = router_->block_names(submission.prefix, sequence.prompt, sequence.media);
    if (!names.empty()) expected.prompts.push_back({sequence.key, std::move(names)});
  }
  if (expected.prompts.empty()) return {};
  open.expecting = engine;
  return expected;
}

/// A lease that begins ends this, too, but not each of them does: a session may end before.
void SessionBook::forget_expected(Open& open) {
  const auto engine = std::exchange(open.expecting, {});
  if (!engine) return;
  Forgotten& forgotten = forgotten_.emplace_back(Forgotten{*engine, {}});
  for (const SessionSequence& sequence : open.session->sequences())
    forgotten.prompts.keys.push_back(sequence.key);
}

/// Its engine will not take it: true when another one may.
bool SessionBook::refused_by_engine(Open& open) {
  open.refused_by.push_back(*open.engine);
  if (candidates(open).empty()) return false;
  take_from_engine(open);
  return true;
}

void SessionBook::take_from_engine(Open& open) {
  open.engine.reset();
  open.at_engine = {};
}

SessionBook::Engine& SessionBook::at(std::uint32_t engine) {
  if (engine >= engines_.size()) engines_.resize(engine + 1);
  return engines_[engine];
}

std::optional<EngineProcess> SessionBook::process_of(std::uint32_t engine) const {
  if (engine >= engines_.size() || !engines_[engine].up) return std::nullopt;
  return EngineProcess{engine, *engines_[engine].epoch};
}

std::optional<EngineProcess> SessionBook::engine_of(std::uint64_t exchange) const {
  const auto it = sessions_.find(exchange);
  return it == sessions_.end() || !it->second.engine ? std::nullopt : process_of(*it->second.engine);
}

std::vector<std::uint64_t> SessionBook::engine_up(const EngineProcess& process, std::int64_t now_ns,
                                                  Effects& effects) {
  Engine& engine = at(process.engine);
  if (engine.epoch && (process.epoch < *engine.epoch || (engine.up && process.epoch == *engine.epoch)))
    return {};
  if (engine.up) engine_down({process.engine, *engine.epoch}, now_ns, effects);
  if (is_prefill(process.engine)) stop_waiting(process);
  engine = {process.epoch, true, 0};
  std::set<Arrival> ready;
  for (const auto& [exchange, open] : sessions_) {
    if (open.session->ready() && open.engine.value_or(process.engine) == process.engine) {
      ready.emplace(open.arrived_ns, exchange);
    }
  }
  return exchanges(ready);
}

void SessionBook::engine_down(const EngineProcess& process, std::int64_t now_ns, Effects& effects) {
  Engine& engine = at(process.engine);
  if (!engine.up || process.epoch < *engine.epoch) return;
  engine.up = false;
  const std::optional<Quarantine::Request> alone = quarantine_->ended({process.engine, *engine.epoch});
  std::set<Arrival> poisonous;
  for (auto& [exchange, open] : sessions_) {
    if (open.engine != process.engine) continue;
    const bool ran_alone = alone && *alone == open.self;
    waiting_.erase({open.arrived_ns, exchange});
    open.session->engine_ended(!alone || ran_alone, ran_alone);
    open.compiling = open.alone = false;
    open.refused_by.clear();
    if (open.session->lives().poisonous() && open.session->ready())
      poisonous.emplace(open.arrived_ns, exchange);
  }
  for (const std::uint64_t exchange : exchanges(poisonous)) {
    effects.poisonous.emplace_back(request_of(exchange));
    fail(exchange, poison(), now_ns, effects);
  }
}

std::vector<std::uint64_t> SessionBook::stop_waiting(const EngineProcess& process) {
  if (at(process.engine).epoch.value_or(0) >= process.epoch) return {};
  std::set<Arrival> ready;
  for (auto& [exchange, open] : sessions_) {
    if (open.engine != process.engine) continue;
    take_from_engine(open);
    if (open.session->ready()) ready.emplace(open.arrived_ns, exchange);
  }
  return exchanges(ready);
}

std::vector<std::uint64_t> SessionBook::leave_silent(std::int64_t now_ns, Effects& effects) {
  bool others = false;
  std::set<std::uint32_t> silent;
  for (std::uint32_t engine = 0; engine < engines_.size(); ++engine) {
    Engine& one = engines_[engine];
    if (!one.up) continue;
    const bool responds = router_->responds(engine);
    others = others || (responds && !is_prefill(engine));
    if (responds || one.silent_ns == 0) one.silent_ns = responds ? 0 : now_ns;
    if (is_prefill(engine) && !responds && now_ns - one.silent_ns >= kSilence) silent.insert(engine);
  }
  std::set<Arrival> ready;
  if (!others || silent.empty()) return {};
  for (auto& [exchange, open] : sessions_) {
    if (!open.engine || !silent.contains(*open.engine)) continue;
    open.session->leave_engine(effects);
    open.compiling = false;
    take_from_engine(open);
    if (open.session->ready()) ready.emplace(open.arrived_ns, exchange);
  }
  return exchanges(ready);
}

bool SessionBook::refused(const Refused& refused, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(refused.exchange);
  if (it == sessions_.end()) return false;
  Open& open = it->second;
  if (open.engine && open.session->is_submitted(refused.attempt)) {
    // What is wrong with a request is wrong everywhere, but a prefill instance may have other limits.
    const bool elsewhere = refused.status.code == Code::overloaded || is_prefill(*open.engine);
    if (elsewhere && refused_by_engine(open)) {
      open.session->take_back(effects);
      return true;
    }
  }
  open.session->refused(refused.attempt, refused.status, now_ns, effects);
  settle(refused.exchange);
  return false;
}

bool SessionBook::is_handed_over(std::uint64_t exchange, std::uint32_t attempt) const {
  const auto it = sessions_.find(exchange);
  return it != sessions_.end() && it->second.session->is_handed_over(attempt);
}

void SessionBook::take(const StepTokens& step, std::int64_t now_ns, const Slice& slice, Effects& effects) {
  ++takes_;
  touched_.clear();
  for (const SequenceTokens& tokens : step.sequences) {
    const auto place = places_.find(tokens.key);
    if (place == places_.end()) continue;  // the client left while the step ran
    Open& open = sessions_.find(place->second.exchange)->second;
    const auto [exchange, sequence] = place->second;
    bool taken = false;
    const std::size_t handed_over = effects.handed_over.size();
    const bool done = contained(exchange, now_ns, effects,
                                [&] { taken = open.session->take(sequence, tokens, step, now_ns, effects); });
    if (!done) continue;
    if (!taken) ++dropped_;
    if (effects.handed_over.size() > handed_over) take_from_engine(open);
    if (open.alone && !open.session->lives().suspect()) leave_quarantine(open);
    if (open.touched == takes_) continue;
    open.touched = takes_;
    touched_.push_back(exchange);
  }
  for (const std::uint64_t exchange : touched_) {
    const auto it = sessions_.find(exchange);
    if (it == sessions_.end()) continue;  // a fault has ended it
    if (contained(exchange, now_ns, effects, [&] { it->second.session->flush(now_ns, slice, effects); }))
      settle(exchange);
  }
}

void SessionBook::fail(std::uint64_t exchange, const Status& status, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return;
  it->second.session->fail(status, now_ns, effects);
  settle(exchange);
}

void SessionBook::fail_all(const Status& status, std::int64_t now_ns, Effects& effects) {
  std::vector<std::uint64_t> open;
  for (const auto& [exchange, session] : sessions_) open.push_back(exchange);
  for (const std::uint64_t exchange : open) fail(exchange, status, now_ns, effects);
}

void SessionBook::withdraw(std::uint64_t exchange, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return;
  it->second.session->withdraw(now_ns, effects);
  settle(exchange);
}

void SessionBook::resume(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return;
  if (contained(exchange, now_ns, effects, [&] { it->second.session->resume(now_ns, slice, effects); }))
    settle(exchange);
}

void SessionBook::expire(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return;
  if (contained(exchange, now_ns, effects, [&] { it->second.session->expire(now_ns, slice, effects); }))
    settle(exchange);
}

std::string_view SessionBook::request_of(std::uint64_t exchange) const {
  const auto it = sessions_.find(exchange);
  return it == sessions_.end() ? std::string_view() : it->second.request_id;
}

/// Forgets the session if it has closed.
void SessionBook::settle(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end() || !it->second.session->closed()) return;
  leave_quarantine(it->second);
  forget_expected(it->second);
  waiting_.erase({it->second.arrived_ns, exchange});
  for (const SessionSequence& sequence : it->second.session->sequences()) places_.erase(sequence.key);
  sessions_.erase(it);
  closed_.push_back(exchange);
}

void SessionBook::leave_quarantine(Open& open) {
  if (std::exchange(open.alone, false)) quarantine_->leave(open.self);
}

}  // namespace troupe
