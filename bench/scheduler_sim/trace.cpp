#include "bench/scheduler_sim/trace.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace troupe::bench {
namespace {

/// splitmix64's finalizer.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

using TraceRandom = std::mt19937_64;

std::int32_t draw(const LengthDistribution& d, TraceRandom& random) {
  const double tokens = std::lognormal_distribution<>(std::log(d.median), d.sigma)(random);
  return static_cast<std::int32_t>(std::clamp(tokens, 1.0, static_cast<double>(d.most)));
}

}  // namespace

TokenId Trace::token(std::uint32_t chat, std::int32_t position) const {
  const TraceChat& c = chats[chat];
  const bool shared = position < c.system_tokens;
  return text_token(shared ? c.system : (std::uint64_t{1} << 32) + chat, position);
}

TokenId text_token(std::uint64_t text, std::int32_t position) {
  const std::uint64_t bits = scramble((text << 24) + static_cast<std::uint64_t>(position));
  return static_cast<TokenId>(bits % static_cast<std::uint64_t>(kTraceStop));
}

Trace make_trace(const TraceOptions& o) {
  Trace trace;
  trace.options = o;
  TraceRandom random(o.seed);
  if (o.clients > 0) {
    trace.chats.resize(o.requests);
    for (std::uint32_t i = 0; i < o.requests; ++i) {
      const std::uint32_t next = i + o.clients < o.requests ? i + o.clients : kNoTurn;
      trace.turns.push_back({i, next, i < o.clients, 0, draw(o.prompt, random), draw(o.output, random)});
    }
    return trace;
  }
  std::exponential_distribution<> gap(1);
  std::uniform_real_distribution<> share(0, 1);
  const double chat_rate = o.rate / o.mean_turns;
  double now = 0;
  while (trace.turns.size() < o.requests) {
    // Within a burst chats arrive ten times as fast; bursts are as far apart as keeps the rate.
    const bool burst_goes_on = o.burst > 1 && share(random) < 1 - 1 / o.burst;
    const double spacing = o.burst <= 1 ? 1 : burst_goes_on ? 0.1 : o.burst - 0.1 * (o.burst - 1);
    now += spacing * gap(random) / chat_rate;
    const auto chat = static_cast<std::uint32_t>(trace.chats.size());
    TraceChat& c = trace.chats.emplace_back();
    if (o.systems > 0) {
      c.system = static_cast<std::uint32_t>(random() % o.systems);
      c.system_tokens = o.system_tokens;
    }
    const bool document = share(random) < o.documents;
    std::int32_t length = c.system_tokens;
    for (int n = 0; n < kMaxTurns && (n == 0 || trace.turns.size() < o.requests); ++n) {
      const bool first = n == 0;
      TraceTurn turn;
      turn.chat = chat;
      turn.opens_chat = first;
      turn.at_s = first ? now : std::lognormal_distribution<>(std::log(o.pause_s), 0.6)(random);
      const bool brings_document = first && document;
      length += brings_document
                    ? std::uniform_int_distribution<std::int32_t>(o.document_least, o.document_most)(random)
                    : draw(o.prompt, random);
      turn.prompt_tokens = length;
      turn.output_tokens = draw(o.output, random);
      length += turn.output_tokens;
      if (!first) trace.turns.back().next = static_cast<std::uint32_t>(trace.turns.size());
      trace.turns.push_back(turn);
      if (share(random) < 1 / o.mean_turns) break;
    }
  }
  return trace;
}

}  // namespace troupe::bench
