#include "actors/session/session_book.h"

#include <utility>

namespace troupe {

void SessionBook::open(Ask ask) {
  const std::uint64_t exchange = ask.exchange;
  std::string request_id = ask.request_id;
  auto session = std::make_unique<Session>(context_, std::move(ask));
  Open& open = sessions_[exchange];
  open.session = std::move(session);
  open.request_id = std::move(request_id);
}

std::optional<Encode> SessionBook::take_encode(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return std::nullopt;
  return it->second.session->take_encode();
}

Submit SessionBook::encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return {};
  Open& open = it->second;
  Submit submit;
  const bool done = attempt(exchange, now_ns, effects, [&] {
    submit = open.session->encoded(std::move(encoded), keys_, now_ns, effects);
    for (std::size_t i = 0; i < submit.sequences.size(); ++i) {
      open.keys.push_back(submit.sequences[i].key);
      places_[submit.sequences[i].key] = {exchange, i};
    }
  });
  if (!done) return {};
  settle(exchange);
  return submit;
}

std::optional<Compile> SessionBook::hold(std::uint64_t exchange, Submit& submit) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end() || submit.sequences.empty()) return std::nullopt;
  auto job = it->second.session->take_compile();
  if (job) it->second.held = std::exchange(submit, {});
  return job;
}

Submit SessionBook::compiled(std::uint64_t exchange, const Compiled& compiled, std::int64_t now_ns, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) {  // the client has left
    if (compiled.grammar != 0) effects.grammars.push_back(compiled.grammar);
    return {};
  }
  Submit submit = std::exchange(it->second.held, {});
  bool goes_on = false;
  const bool done = attempt(exchange, now_ns, effects, [&] {
    goes_on = it->second.session->compiled(compiled, submit, now_ns, effects);
  });
  if (!done) return {};
  if (!goes_on) submit = {};
  settle(exchange);
  return submit;
}

void SessionBook::take(const StepTokens& step, std::int64_t now_ns, const Slice& slice, Effects& effects) {
  ++takes_;
  touched_.clear();
  for (const SequenceTokens& tokens : step.sequences) {
    const auto place = places_.find(tokens.key);
    if (place == places_.end()) continue;  // the client left while the step ran
    Open& open = sessions_.find(place->second.exchange)->second;
    const auto [exchange, sequence] = place->second;
    const bool done = attempt(exchange, now_ns, effects,
                              [&] { open.session->take(sequence, tokens, step, now_ns, effects); });
    if (!done || open.touched == takes_) continue;
    open.touched = takes_;
    touched_.push_back(exchange);
  }
  for (const std::uint64_t exchange : touched_) {
    const auto it = sessions_.find(exchange);
    if (it == sessions_.end()) continue;  // a fault has ended it
    if (attempt(exchange, now_ns, effects, [&] { it->second.session->flush(now_ns, slice, effects); })) settle(exchange);
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
  if (attempt(exchange, now_ns, effects, [&] { it->second.session->resume(now_ns, slice, effects); })) settle(exchange);
}

void SessionBook::expire(std::uint64_t exchange, std::int64_t now_ns, const Slice& slice, Effects& effects) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end()) return;
  if (attempt(exchange, now_ns, effects, [&] { it->second.session->expire(now_ns, slice, effects); })) settle(exchange);
}

std::string_view SessionBook::request_of(std::uint64_t exchange) const {
  const auto it = sessions_.find(exchange);
  return it == sessions_.end() ? std::string_view() : it->second.request_id;
}

/// Forgets the session if it has closed.
void SessionBook::settle(std::uint64_t exchange) {
  const auto it = sessions_.find(exchange);
  if (it == sessions_.end() || !it->second.session->closed()) return;
  for (const RequestKey& key : it->second.keys) places_.erase(key);
  sessions_.erase(it);
  closed_.push_back(exchange);
}

}  // namespace troupe
