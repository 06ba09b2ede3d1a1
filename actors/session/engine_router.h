#pragma once
// Which of several engines a request is given to: one that has much of its prompt in the prefix cache, unless
// it has too much more to do than another.
//
// What an engine has cached is read from the table of the names of its KV blocks, which the engine writes
// (ipc/block_names.h), and known from what was sent there lately: the blocks of a prompt that is being
// computed have no names yet, and the next prompt with the same beginning must not be computed elsewhere.
//
// What an engine has to do is counted in tokens: of its open requests, the prompt tokens that were not
// expected to be found, and an expected length of their answers.
//
// Engines may be followed by prefill instances: engines of other instances that compute a prompt, yield its
// first token and hand the request over. One is chosen for a prompt that is long where it would be computed
// otherwise.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/cache/cached_names.h"
#include "actors/messages.h"
#include "actors/session/recent_names.h"
#include "base/clock.h"
#include "config/options.h"
#include "ipc/block_names.h"

namespace troupe {

/// Any thread may call any function.
class EngineRouter : public std::enable_shared_from_this<EngineRouter> {
 public:
  /// What an engine has to compute for a request.
  struct Request {
    std::span<const TokenId> prompt;      ///< the first of its prompts, and
    std::span<const SequenceItem> media;  ///< the items in it
    std::int64_t prompt_tokens = 0;       ///< of all prompts
    std::int64_t answers = 0;
    std::int64_t answer_tokens = 0;     ///< of each answer, at most
    const PrefixUse* prefix = nullptr;  ///< null: it finds nothing cached
    std::string_view together;  ///< requests with the same value prefer one engine; empty: it has none
    bool begun = false;       ///< it has yielded tokens: it goes on at an engine that is no prefill instance
    bool hands_over = false;  ///< a prefill instance may compute its prompts and hand it over
  };

  struct Setup {
    config::RoutingPolicy policy = config::RoutingPolicy::cache;
    std::int32_t block_tokens = 64;
    /// By engine: the names of its blocks. All tables have the same key. Empty: it is not known what is
    /// cached.
    std::vector<std::shared_ptr<const ipc::BlockNames>> names{};
    /// Whether an engine gives signs of life; may be empty.
    std::function<bool(std::uint32_t engine)> responds{};
    /// Engines from this index on are prefill instances.
    std::uint32_t first_prefill = std::numeric_limits<std::uint32_t>::max();
    /// A prompt with fewer tokens that are not cached is not given to one.
    std::int64_t min_prompt_tokens = 512;
    std::function<TimePoint()> now = Clock::now;  ///< monotonic
  };

  explicit EngineRouter(Setup setup);

  /// A request's place at an engine, whose load includes the request's until this ends.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { swap(other); }
    Place& operator=(Place&& other) noexcept {
      Place moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~Place();

    /// Its engine computes the request's prompts and hands it over behind the first token.
    bool hands_over() const { return hands_over_; }
    /// With hands_over(): the engine that the request will go on at, as it looks now.
    std::uint32_t next_engine() const { return next_engine_; }

   private:
    friend class EngineRouter;
    void swap(Place& other) noexcept {
      std::swap(router_, other.router_);
      std::swap(engine_, other.engine_);
      std::swap(load_, other.load_);
      std::swap(hands_over_, other.hands_over_);
      std::swap(next_engine_, other.next_engine_);
    }

    std::shared_ptr<EngineRouter> router_;
    std::uint32_t engine_ = 0;
    std::int64_t load_ = 0;
    bool hands_over_ = false;
    std::uint32_t next_engine_ = 0;
  };

  /// Returns one of `candidates`, which are not empty. `place` is there from now on.
  std::uint32_t choose(const Request& request, std::span<const std::uint32_t> candidates, Place& place);

  /// The engine can serve or, `on` false, cannot now: then it is chosen only where no other candidate can.
  /// All can at first.
  void serves(std::uint32_t engine, bool on);

  bool is_prefill(std::uint32_t engine) const { return engine >= setup_.first_prefill; }

  /// The engine gives signs of life, as far as is known.
  bool responds(std::uint32_t engine) const { return !setup_.responds || setup_.responds(engine); }

  /// The names that the full blocks of a prompt will have; none: names are not looked at, or the request does
  /// not use them.
  std::vector<BlockHash> block_names(const PrefixUse& prefix, std::span<const TokenId> prompt,
                                     std::span<const SequenceItem> media) const;

  /// Tokens that the engine has to compute, as far as is known here.
  std::int64_t load(std::uint32_t engine);

 private:
  struct Engine {
    std::int64_t load = 0;
    bool serves = true;
    // Of the prompt of the choice that is being made, so many blocks from its first on:
    std::int32_t cached = 0;  ///< are there, or are expected to be when the prompt comes
    std::int32_t named = 0;   ///< are there
  };

  /// Under which names what a request needs is known.
  struct Names {
    std::vector<BlockHash> blocks;      ///< of its prompt, in order
    std::optional<BlockHash> together;  ///< that of Request::together
  };
  Names names_of(const Request& request) const;
  /// An engine, and how many of the prompt's tokens are expected to be found there.
  struct Found {
    std::uint32_t engine = 0;
    std::int64_t cached = 0;
  };
  Found best_of(std::span<const std::uint32_t> engines, const Names& names);
  std::optional<Found> prefill_for(const Request& request, std::span<const std::uint32_t> prefills,
                                   std::int64_t cached);
  std::vector<std::uint32_t> able(std::span<const std::uint32_t> candidates);
  void find_cached(std::span<const BlockHash> names);
  std::int64_t tokens(std::int32_t blocks) const { return std::int64_t{blocks} * setup_.block_tokens; }
  void refresh();
  Engine& at(std::uint32_t engine);

  const Setup setup_;
  std::optional<BlockHasher> hasher_;  // nothing: prefixes are not looked at

  std::mutex mutex_;
  std::vector<Engine> engines_;  // guarded by mutex_, as all below
  CachedNames cached_;
  RecentNames recent_;
  TimePoint refreshed_{};
  std::uint32_t turn_ = 0;
};

}  // namespace troupe
