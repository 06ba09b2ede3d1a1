#include "actors/scheduler/front_table.h"

#include <algorithm>

namespace troupe {

void FrontTable::hold(std::uint32_t front, bool on, ScheduledSequences& table) {
  if (on == is_held(front)) return;
  if (on) {
    held_.push_back(front);
  } else {
    std::erase(held_, front);
  }
  for (std::uint32_t i = 0; i < table.places(); ++i) {
    if (table[i].live && table[i].front == front) table[i].held = on;
  }
}

bool FrontTable::is_held(std::uint32_t front) const {
  return std::find(held_.begin(), held_.end(), front) != held_.end();
}

void FrontTable::drop(std::uint32_t front) {
  std::erase(held_, front);
  for (Destination& one : destinations_) one.used &= one.front != front;
}

std::uint32_t FrontTable::destination(std::uint32_t front, std::uint32_t host) {
  const auto is_it = [&](const Destination& one) {
    return one.used && one.front == front && one.host == host;
  };
  auto at = std::find_if(destinations_.begin(), destinations_.end(), is_it);
  if (at == destinations_.end()) {
    at = std::find_if(destinations_.begin(), destinations_.end(),
                      [](const Destination& one) { return !one.used; });
    if (at == destinations_.end()) at = destinations_.insert(at, Destination{});
    *at = {front, host, true};
  }
  return static_cast<std::uint32_t>(at - destinations_.begin());
}

SequenceTokens& FrontTable::report(ScheduledSequence& s, StepOutput& out) const {
  if (out.hosts.size() <= s.destination) out.hosts.resize(s.destination + 1);
  HostTokens& host = out.hosts[s.destination];
  host.front = s.front;
  host.host = destinations_[s.destination].host;
  SequenceTokens& tokens = host.step.sequences.emplace_back();
  tokens.key = s.key;
  tokens.first_token = static_cast<std::int32_t>(host.step.tokens.size());
  tokens.first_score = static_cast<std::int32_t>(host.step.scores.size());
  tokens.attempt = s.attempt;
  tokens.position = s.output_tokens();
  if (!s.reported) {
    tokens.scheduled_ns = s.scheduled_ns;
    tokens.cached_tokens = std::max(0, s.cached_tokens);
  }
  s.reported = true;
  return tokens;
}

}  // namespace troupe
