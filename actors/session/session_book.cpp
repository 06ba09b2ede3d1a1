#include "actors/session/session_book.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

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

std::optional<Compile> SessionBook::take_compile(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (!up_ || it == sessions_.end()) return std::nullopt;
  const Session& session = *it->second.session;
  if (!session.ready() || !session.needs_grammar() || std::exchange(it->second.compiling, true))
    return std::nullopt;
  return session.compile_job();
}

Submit SessionBook::compiled(std::uint64_t exchange, const Compiled& compiled, std::int64_t now_ns,
                             Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) {  // the client has left
    if (compiled.grammar != 0) effects.grammars.push_back(compiled.grammar);
    return {};
  }
  it->second.compiling = false;
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
  if (!up_ || it == sessions_.end()) return {};
  Open& open = it->second;
  if (!open.session->ready() || open.session->needs_grammar()) return {};
  const bool alone = open.session->lives().suspect();
  if (alone && !quarantine_->enter(open.self, *epoch_)) {
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

std::vector<std::uint64_t> SessionBook::engine_up(std::uint32_t epoch, std::int64_t now_ns,
                                                  Effects& effects) {
  if (epoch_ && (epoch < *epoch_ || (up_ && epoch == *epoch_))) return {};
  if (up_) engine_down(*epoch_, now_ns, effects);
  epoch_ = epoch;
  up_ = true;
  std::set<Arrival> ready;
  for (const auto& [exchange, open] : sessions_) {
    if (open.session->ready()) ready.emplace(open.arrived_ns, exchange);
  }
  return exchanges(ready);
}

void SessionBook::engine_down(std::uint32_t epoch, std::int64_t now_ns, Effects& effects) {
  if (!up_ || epoch < *epoch_) return;
  up_ = false;
  waiting_.clear();
  const std::optional<Quarantine::Request> alone = quarantine_->ended(*epoch_);
  std::set<Arrival> poisonous;
  for (auto& [exchange, open] : sessions_) {
    const bool ran_alone = alone && *alone == open.self;
    open.session->engine_ended(!alone || ran_alone, ran_alone);
    open.compiling = open.alone = false;
    if (open.session->lives().poisonous() && open.session->ready())
      poisonous.emplace(open.arrived_ns, exchange);
  }
  for (const std::uint64_t exchange : exchanges(poisonous)) {
    effects.poisonous.emplace_back(request_of(exchange));
    fail(exchange, poison(), now_ns, effects);
  }
}

void SessionBook::refused(const Refused& refused, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(refused.exchange);
  if (it == sessions_.end()) return;
  it->second.session->refused(refused.attempt, refused.status, now_ns, effects);
  settle(refused.exchange);
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
    const bool done = contained(exchange, now_ns, effects,
                                [&] { taken = open.session->take(sequence, tokens, step, now_ns, effects); });
    if (!done) continue;
    if (!taken) ++dropped_;
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
  waiting_.erase({it->second.arrived_ns, exchange});
  for (const SessionSequence& sequence : it->second.session->sequences()) places_.erase(sequence.key);
  sessions_.erase(it);
  closed_.push_back(exchange);
}

void SessionBook::leave_quarantine(Open& open) {
  if (std::exchange(open.alone, false)) quarantine_->leave(open.self);
}

}  // namespace troupe
