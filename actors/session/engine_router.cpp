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

/// The name that stands for Request::together, unlike any block's.
BlockHash name_of(std::string_view together, const ipc::NamesKey& key) {
  return siphash({~key.low, ~key.high}, std::as_bytes(std::span(together)));
}

}  // namespace

EngineRouter::EngineRouter(Setup setup) : setup_(std::move(setup)), cached_(setup_.names) {
  if (setup_.policy != config::RoutingPolicy::cache) return;  // it looks at no names
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
  const std::vector<BlockHash> names = names_of(request);
  const std::lock_guard lock(mutex_);
  refresh();
  const std::vector<std::uint32_t> engines = able(candidates);
  std::uint32_t chosen = engines[turn_++ % engines.size()];
  std::int64_t found = 0;
  if (setup_.policy == config::RoutingPolicy::cache) {
    const BlockHash* const together = request.together.empty() || !hasher_ ? nullptr : &names.back();
    const std::optional<std::uint32_t> home =
        together != nullptr ? recent_.engine_of(*together) : std::nullopt;
    const std::span<const BlockHash> blocks(names.data(), names.size() - (together != nullptr ? 1 : 0));
    find_cached(blocks);
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    // Of equal ones the first counts, beginning with the one whose turn it is.
    for (std::size_t i = 0; i < engines.size(); ++i) {
      const std::uint32_t engine = engines[(turn_ + i) % engines.size()];
      const std::int64_t cached = std::int64_t{at(engine).cached} * setup_.block_tokens;
      const std::int64_t kept = std::max<std::int64_t>(cached, home == engine ? setup_.block_tokens : 0);
      const std::int64_t cost = at(engine).load - kWorth * kept;
      if (cost >= best) continue;
      best = cost;
      chosen = engine;
      found = cached;
    }
    for (const BlockHash& name : names) recent_.put(name, chosen);
  }
  place.router_ = shared_from_this();
  place.engine_ = chosen;
  place.load_ =
      request.prompt_tokens - found + request.answers * std::min(request.answer_tokens, kExpectedAnswer);
  at(chosen).load += place.load_;
  return chosen;
}

void EngineRouter::serves(std::uint32_t engine, bool on) {
  const std::lock_guard lock(mutex_);
  at(engine).serves = on;
}

std::int64_t EngineRouter::load(std::uint32_t engine) {
  const std::lock_guard lock(mutex_);
  return at(engine).load;
}

/// Those of the prompt's full blocks before its last token, which is always computed; then that of
/// `together`, if there is one.
std::vector<BlockHash> EngineRouter::names_of(const Request& request) const {
  std::vector<BlockHash> names;
  if (!hasher_) return names;
  const auto length = static_cast<std::size_t>(setup_.block_tokens);
  if (request.prefix != nullptr && request.prefix->enabled && !request.prompt.empty()) {
    BlockHash last = hasher_->root(request.prefix->salt);
    std::vector<BlockHash> media;
    for (std::size_t end = length; end < request.prompt.size(); end += length) {
      media_in_block(request.media, static_cast<std::int32_t>(end - length), setup_.block_tokens, media);
      last = hasher_->next(last, request.prompt.subspan(end - length, length), media);
      names.push_back(last);
    }
  }
  if (!request.together.empty()) names.push_back(name_of(request.together, setup_.names.front()->key()));
  return names;
}

/// Those that can serve and respond, or all where none does.
std::vector<std::uint32_t> EngineRouter::able(std::span<const std::uint32_t> candidates) {
  std::vector<std::uint32_t> out;
  for (const std::uint32_t engine : candidates) {
    if (at(engine).serves && (!setup_.responds || setup_.responds(engine))) out.push_back(engine);
  }
  if (out.empty()) out.assign(candidates.begin(), candidates.end());
  return out;
}

/// Sets Engine::cached of all engines.
void EngineRouter::find_cached(std::span<const BlockHash> names) {
  for (Engine& engine : engines_) engine.cached = 0;
  std::int32_t before = 0;
  for (const BlockHash& name : names) {
    bool found = false;
    const auto has = [&](std::uint32_t engine) {
      std::int32_t& cached = at(engine).cached;
      if (cached != before) return;
      ++cached;
      found = true;
    };
    cached_.for_each_holder(name, has);
    if (const std::optional<std::uint32_t> recent = recent_.engine_of(name)) has(*recent);
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
