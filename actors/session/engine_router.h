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
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/messages.h"
#include "actors/session/cached_names.h"
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
  };

  struct Setup {
    config::RoutingPolicy policy = config::RoutingPolicy::cache;
    std::int32_t block_tokens = 64;
    /// By engine: the names of its blocks. All tables have the same key. Empty: it is not known what is
    /// cached.
    std::vector<std::shared_ptr<const ipc::BlockNames>> names{};
    /// Whether an engine gives signs of life; may be empty.
    std::function<bool(std::uint32_t engine)> responds{};
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

   private:
    friend class EngineRouter;
    void swap(Place& other) noexcept {
      std::swap(router_, other.router_);
      std::swap(engine_, other.engine_);
      std::swap(load_, other.load_);
    }

    std::shared_ptr<EngineRouter> router_;
    std::uint32_t engine_ = 0;
    std::int64_t load_ = 0;
  };

  /// Returns one of `candidates`, which are not empty. `place` is there from now on.
  std::uint32_t choose(const Request& request, std::span<const std::uint32_t> candidates, Place& place);

  /// The engine can serve or, `on` false, cannot now: then it is chosen only where no other candidate can.
  /// All can at first.
  void serves(std::uint32_t engine, bool on);

  /// Tokens that the engine has to compute, as far as is known here.
  std::int64_t load(std::uint32_t engine);

 private:
  struct Engine {
    std::int64_t load = 0;
    bool serves = true;
    std::int32_t cached = 0;  ///< blocks of the prompt of the choice that is being made
  };

  std::vector<BlockHash> names_of(const Request& request) const;
  std::vector<std::uint32_t> able(std::span<const std::uint32_t> candidates);
  void find_cached(std::span<const BlockHash> names);
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
