#include "actors/session/engine_router.h"

#include <algorithm>
#include <limits>

#include "actors/cache/media_names.h"

namespace troupe {
namespace {

/// How old the copy of the tables may be.
constexpr Duration kFresh = std::chrono::milliseconds(50);
/// Tokens that an answer is expected to have at most: max_tokens often says what the model can do, not what
/// will come.
constexpr std::int64_t kExpectedAnswer = 256;
/// So many tokens of other requests are worth waiting for where a token of the prompt need not be computed.
/// Above 1, as a prefix that is computed in a second place also takes the room of another there.
constexpr std::int64_t kWorth = 4;
/// A prefill instance gets a prompt only if it has at most so many times the prompt's tokens queued. So the
/// first token takes at most five times as long as on an idle instance, short prompts do not queue behind
/// long ones, and the other engines compute what the prefill instances have no capacity for.
constexpr std::int64_t kMostQueued = 4;

/// The name that stands for Request::together, unlike any block's.
BlockHash name_of(std::string_view together, const ipc::NamesKey& key) {
  return siphash({~key.low, ~key.high}, std::as_bytes(std::span(together)));
}

}  // namespace

EngineRouter::EngineRouter(Setup setup) : setup_(std::move(setup)), cached_(setup_.names) {
  if (setup_.policy != config::RoutingPolicy::cache && setup_.names.size() <= setup_.first_prefill)
    return;  // it looks at no names
  if (setup_.names.empty()) return;
  const ipc::NamesKey key = setup_.names.front()->key();
  hasher_.emplace(HashKey{key.low, key.high});
}

EngineRouter::Place::~Place() {
  if (router_ == nullptr) return;
  const std::lock_guard lock(router_->mutex_);
  router_->at(engine_).load -= load_;
}

EngineRouter::Engine& EngineRouter::at(std::uint32_t engine) {
  if (engine >= engines_.size()) engines_.resize(engine + 1);
  return engines_[engine];
}

std::uint32_t EngineRouter::choose(const Request& request, std::span<const std::uint32_t> candidates,
                                   Place& place) {
  place = {};
  if (candidates.size() == 1 && setup_.names.size() <= 1) return candidates.front();
  const Names names = names_of(request);
  const std::lock_guard lock(mutex_);
  refresh();
  find_cached(names.blocks);
  std::vector<std::uint32_t> own, prefills;
  for (const std::uint32_t engine : candidates) (is_prefill(engine) ? prefills : own).push_back(engine);
  const std::vector<std::uint32_t> own_able = able(own), prefills_able = able(prefills);

  // What has begun waits for an engine that is up but cannot serve now: a prefill instance would keep it.
  const bool by_own = !own.empty() && (!own_able.empty() || request.begun || prefills_able.empty());
  const auto& first = by_own ? own_able : prefills_able;
  Found chosen = best_of(!first.empty() ? first : by_own ? own : prefills, names);
  if (request.hands_over && hasher_ && !own_able.empty()) {
    if (const auto prefill = prefill_for(request, prefills_able, tokens(at(chosen.engine).named))) {
      place.hands_over_ = true;
      place.next_engine_ = chosen.engine;
      chosen = *prefill;
    }
  }
  for (const BlockHash& name : names.blocks) recent_.put(name, chosen.engine);
  if (names.together && !place.hands_over_) recent_.put(*names.together, chosen.engine);
  const std::int64_t answers =
      place.hands_over_ ? 0 : request.answers * std::min(request.answer_tokens, kExpectedAnswer);
  place.router_ = shared_from_this();
  place.engine_ = chosen.engine;
  place.load_ = std::max<std::int64_t>(0, request.prompt_tokens - chosen.cached) + answers;
  at(chosen.engine).load += place.load_;
  return chosen.engine;
}

/// The one of `engines` that is worth the most: by what it has cached and has to do, or in turn.
EngineRouter::Found EngineRouter::best_of(std::span<const std::uint32_t> engines, const Names& names) {
  const std::size_t turn = turn_++;
  Found chosen{engines[turn % engines.size()]};
  if (setup_.policy != config::RoutingPolicy::cache) {
    chosen.cached = tokens(at(chosen.engine).cached);
    return chosen;
  }
  const std::optional<std::uint32_t> home =
      names.together ? recent_.engine_of(*names.together) : std::nullopt;
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  // Of equal ones the first counts, beginning with the one whose turn it is.
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const std::uint32_t engine = engines[(turn + 1 + i) % engines.size()];
    const std::int64_t cached = tokens(at(engine).cached);
    const std::int64_t kept = std::max<std::int64_t>(cached, home == engine ? setup_.block_tokens : 0);
    const std::int64_t cost = at(engine).load - kWorth * kept;
    if (cost >= best) continue;
    best = cost;
    chosen = {engine, cached};
  }
  return chosen;
}

/// The prefill instance that is to compute a prompt of which another engine has `cached` tokens: the one with
/// the least to do. None: the other tokens are too few to be worth a hand-over, or would wait too long.
std::optional<EngineRouter::Found> EngineRouter::prefill_for(const Request& request,
                                                             std::span<const std::uint32_t> prefills,
                                                             std::int64_t cached) {
  const std::int64_t uncached = request.prompt_tokens - cached;
  if (uncached < setup_.min_prompt_tokens) return std::nullopt;
  std::optional<Found> best;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t engine : prefills) {
    const std::int64_t queued = at(engine).load, found = tokens(at(engine).cached);
    if (queued > kMostQueued * uncached || queued - found >= least) continue;
    least = queued - found;
    best = Found{engine, found};
  }
  return best;
}

void EngineRouter::serves(std::uint32_t engine, bool on) {
  const std::lock_guard lock(mutex_);
  at(engine).serves = on;
}

std::int64_t EngineRouter::load(std::uint32_t engine) {
  const std::lock_guard lock(mutex_);
  return at(engine).load;
}

EngineRouter::Names EngineRouter::names_of(const Request& request) const {
  Names names;
  if (!hasher_) return names;
  if (request.prefix != nullptr) names.blocks = block_names(*request.prefix, request.prompt, request.media);
  if (!request.together.empty()) names.together = name_of(request.together, setup_.names.front()->key());
  return names;
}

std::vector<BlockHash> EngineRouter::block_names(const PrefixUse& prefix, std::span<const TokenId> prompt,
                                                 std::span<const SequenceItem> media) const {
  if (!hasher_ || !prefix.enabled) return {};
  return names_of_prompt(*hasher_, prefix.salt, prompt, media, setup_.block_tokens);
}

/// Those that can serve and respond.
std::vector<std::uint32_t> EngineRouter::able(std::span<const std::uint32_t> candidates) {
  std::vector<std::uint32_t> out;
  for (const std::uint32_t engine : candidates) {
    if (at(engine).serves && responds(engine)) out.push_back(engine);
  }
  return out;
}

/// Sets Engine::cached and Engine::named of all engines.
void EngineRouter::find_cached(std::span<const BlockHash> names) {
  for (Engine& engine : engines_) engine.cached = engine.named = 0;
  std::int32_t before = 0;
  for (const BlockHash& name : names) {
    bool found = false;
    const auto has = [&](std::int32_t& blocks) {
      if (blocks != before) return;
      ++blocks;
      found = true;
    };
    cached_.for_each_holder(name, [&](const CachedNames::Holder& holder) {
      has(at(holder.engine).named);
      has(at(holder.engine).cached);
    });
    if (const std::optional<std::uint32_t> recent = recent_.engine_of(name)) has(at(*recent).cached);
    if (!found) return;
    ++before;
  }
}

void EngineRouter::refresh() {
  const TimePoint now = setup_.now();
  if (now - refreshed_ < kFresh) return;
  refreshed_ = now;
  if (hasher_) cached_.refresh();
}

}  // namespace troupe
