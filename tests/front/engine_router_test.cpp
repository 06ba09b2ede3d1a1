#include "actors/session/engine_router.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"

namespace troupe {
namespace {

constexpr std::int32_t kBlock = 4;

class EngineRouterTest : public ::testing::Test {
 protected:
  EngineRouterTest() {
    const ipc::NamesKey key{3, 5};
    for (int engine = 0; engine < 2; ++engine) {
      const auto fd = ipc::BlockNames::create(64, key);
      auto written = ipc::BlockNames::attach(fd->get());
      auto read = ipc::BlockNames::attach(fd->get(), ipc::Access::read);
      EXPECT_TRUE(written.ok() && read.ok());
      tables_.push_back(std::make_unique<ipc::BlockNames>(*std::move(written)));
      tables_.back()->begin(1);
      setup_.names.push_back(std::make_shared<ipc::BlockNames>(*std::move(read)));
    }
    setup_.block_tokens = kBlock;
  }

  EngineRouter& router() {
    if (!router_) router_ = std::make_shared<EngineRouter>(setup_);
    return *router_;
  }

  /// `tokens` ids from `first` on.
  static std::vector<TokenId> prompt(TokenId first, std::size_t tokens) {
    std::vector<TokenId> ids(tokens);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }

  /// The engine has the prompt's full blocks.
  void cache(std::size_t engine, const std::vector<TokenId>& ids, const std::string& salt = {}) {
    const BlockHasher hasher({3, 5});
    BlockHash name = hasher.root(salt);
    for (std::size_t end = kBlock; end <= ids.size(); end += kBlock) {
      name = hasher.next(name, std::span(ids).subspan(end - kBlock, kBlock));
      tables_[engine]->set(next_block_++, {name, static_cast<std::int32_t>(end / kBlock) - 1});
    }
  }

  /// Gives a request to one of `candidates` and keeps its place.
  std::uint32_t give(const std::vector<TokenId>& ids, std::string_view together = {}, std::int64_t answer = 0,
                     const std::vector<std::uint32_t>& candidates = {0, 1}) {
    const EngineRouter::Request request{.prompt = ids,
                                        .media = media_,
                                        .prompt_tokens = static_cast<std::int64_t>(ids.size()),
                                        .answers = 1,
                                        .answer_tokens = answer,
                                        .prefix = &prefix_,
                                        .together = together};
    return router().choose(request, candidates, places_.emplace_back());
  }

  PrefixUse prefix_;
  std::vector<SequenceItem> media_;  ///< in every prompt
  EngineRouter::Setup setup_;
  std::vector<std::unique_ptr<ipc::BlockNames>> tables_;
  BlockId next_block_ = 0;
  std::shared_ptr<EngineRouter> router_;
  std::vector<EngineRouter::Place> places_;
};

TEST_F(EngineRouterTest, APromptGoesToTheEngineThatHasItsBeginning) {
  cache(1, prompt(100, 40));
  cache(0, prompt(500, 8));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(give(prompt(100, 44)), 1u) << i;
    places_.clear();
  }
  EXPECT_EQ(give(prompt(500, 44)), 0u);
}

TEST_F(EngineRouterTest, TheLongerBeginningCounts) {
  cache(0, prompt(100, 8));
  cache(1, prompt(100, 32));
  EXPECT_EQ(give(prompt(100, 44)), 1u);
}

TEST_F(EngineRouterTest, WhatIsCachedForAnotherSaltIsNot) {
  cache(1, prompt(100, 40), "theirs");
  const std::uint32_t first = give(prompt(100, 44));
  EXPECT_EQ(router().load(first), 44) << "nothing of it was expected to be found";
  prefix_.salt = "theirs";
  EXPECT_EQ(give(prompt(100, 44)), 1u);
}

// The names are those under which the scheduler publishes: of ids and of what images contain.
TEST_F(EngineRouterTest, ImagesCountByWhatTheyContain) {
  Scheduler scheduler({}, {true, true, {3, 5}});
  CacheManager blocks;
  StepOutput out;
  wire::Capacity capacity;
  capacity.kv_blocks = 32;
  capacity.block_tokens = kBlock;
  capacity.max_slots = 4;
  capacity.max_tokens_per_step = 64;
  capacity.max_model_len = 100;
  capacity.vocab_size = 1000;
  capacity.media_tokens = 64;
  blocks.reset(1, capacity.kv_blocks, kBlock, {});
  scheduler.attach(1, capacity, out);
  std::vector<TokenId> ids = prompt(100, 40);
  for (std::size_t i = 6; i < 22; ++i) ids[i] = 7;
  media_ = {{{MediaKind::image, {1, 4, 8}, 6}, {5, 5}, {4096, 1}},
            {{MediaKind::image, {1, 4, 8}, 14}, {6, 6}, {8192, 2}}};
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 1};
  spec.prompt = ids;
  spec.media = media_;
  spec.prompt_tokens = 40;
  spec.max_output_tokens = 1;
  ASSERT_TRUE(scheduler.submit(request).ok());
  CacheAsks asks;
  ASSERT_TRUE(scheduler.take_asks(asks));
  ASSERT_EQ(asks.hashes.size(), 9u);
  for (const BlockHash& name : asks.hashes) {
    tables_[1]->set(next_block_, {name, next_block_});
    ++next_block_;
  }
  const std::int64_t computed = 40 - 36;
  EXPECT_EQ(give(ids), 1u);
  EXPECT_EQ(router().load(1), computed) << "all blocks are found";
  places_.clear();

  media_[1].contents = {6, 7};
  EXPECT_EQ(give(ids), 1u);
  EXPECT_EQ(router().load(1), 40 - 12) << "up to the block with the other image";
  places_.clear();

  media_.clear();
  EXPECT_EQ(give(ids), 1u);
  EXPECT_EQ(router().load(1), 40 - 4);
}

TEST_F(EngineRouterTest, WithoutAnythingInCommonTheLeastLoadedIsChosen) {
  const std::uint32_t first = give(prompt(100, 50));
  EXPECT_EQ(give(prompt(200, 20)), 1 - first);
  EXPECT_EQ(give(prompt(300, 20)), 1 - first) << "20 tokens are less than 50";
  EXPECT_EQ(give(prompt(400, 20)), 1 - first);
  EXPECT_EQ(give(prompt(500, 20)), first);
}

TEST_F(EngineRouterTest, AnswersCountUpToAnExpectedLength) {
  const std::uint32_t first = give(prompt(100, 8), {}, 100'000);
  EXPECT_EQ(router().load(first), 8 + 256);
  EXPECT_EQ(router().load(1 - first), 0);
}

TEST_F(EngineRouterTest, AnEngineWithFarMoreToDoIsNotChosenForItsCache) {
  cache(1, prompt(100, 40));
  EXPECT_EQ(give(prompt(900, 3000), {}, 0, {1}), 1u);
  EXPECT_EQ(give(prompt(100, 44)), 0u);
}

TEST_F(EngineRouterTest, ABeginningThatIsBeingComputedIsKnown) {
  const std::uint32_t first = give(prompt(100, 44));
  EXPECT_EQ(give(prompt(100, 44)), first);
  EXPECT_EQ(router().load(first), 44 + 4) << "all but the last block of the second is expected to be found";
}

TEST_F(EngineRouterTest, APlaceThatEndsTakesItsLoadAlong) {
  const std::uint32_t first = give(prompt(100, 50));
  places_.clear();
  EXPECT_EQ(router().load(first), 0);
  give(prompt(200, 50));
  EngineRouter::Place moved = std::move(places_.back());
  places_.clear();
  EXPECT_EQ(router().load(0) + router().load(1), 50);
  moved = {};
  EXPECT_EQ(router().load(0) + router().load(1), 0);
}

TEST_F(EngineRouterTest, RequestsThatBelongTogetherAreGivenToOneEngine) {
  const std::uint32_t first = give(prompt(100, 3), "a user");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(give(prompt(1000 * i, 2), "a user"), first) << i;
  EXPECT_EQ(give(prompt(9000, 2), "another"), 1 - first);
}

TEST_F(EngineRouterTest, NamesThatAreClearedAreForgotten) {
  cache(1, prompt(100, 40));
  EXPECT_EQ(give(prompt(100, 41)), 1u);
  places_.clear();
  router_.reset();  // with what it has sent where
  tables_[1]->begin(2);
  cache(0, prompt(100, 40));
  EXPECT_EQ(give(prompt(100, 41)), 0u);
}

TEST_F(EngineRouterTest, AnEngineThatCannotServeIsTheLastChoice) {
  cache(1, prompt(100, 40));
  router().serves(1, false);
  EXPECT_EQ(give(prompt(100, 44)), 0u);
  EXPECT_EQ(give(prompt(100, 44), {}, 0, {1}), 1u) << "there is no other";
  router().serves(1, true);
  router().serves(0, false);
  EXPECT_EQ(give(prompt(700, 44)), 1u);
}

TEST_F(EngineRouterTest, OneThatGivesNoSignOfLifeIsTheLastChoice) {
  setup_.responds = [](std::uint32_t engine) { return engine == 0; };
  cache(1, prompt(100, 40));
  EXPECT_EQ(give(prompt(100, 44)), 0u);
}

TEST_F(EngineRouterTest, TablesAreReadAgainWhenTheyMayBeOld) {
  TimePoint now = TimePoint() + std::chrono::hours(1);
  setup_.now = [&now] { return now; };
  give(prompt(900, 44));
  places_.clear();
  cache(1, prompt(100, 40));
  give(prompt(100, 44));
  EXPECT_EQ(router().load(0) + router().load(1), 44) << "read just now";
  places_.clear();
  cache(1, prompt(500, 40));
  now += std::chrono::milliseconds(50);
  give(prompt(500, 44));
  EXPECT_EQ(router().load(1), 4);
}

TEST_F(EngineRouterTest, RoundRobinLooksAtNothing) {
  setup_.policy = config::RoutingPolicy::round_robin;
  cache(1, prompt(100, 40));
  std::vector<std::uint32_t> chosen;
  for (int i = 0; i < 4; ++i) chosen.push_back(give(prompt(100, 44)));
  EXPECT_EQ(chosen, (std::vector<std::uint32_t>{0, 1, 0, 1}));
}

/// Engine 0 belongs to this server, 1 and 2 are prefill instances.
class PrefillRouterTest : public EngineRouterTest {
 protected:
  PrefillRouterTest() {
    setup_.first_prefill = 1;
    setup_.min_prompt_tokens = 40;
    const auto fd = ipc::BlockNames::create(64, ipc::NamesKey{3, 5});
    setup_.names.push_back(
        std::make_shared<ipc::BlockNames>(*ipc::BlockNames::attach(fd->get(), ipc::Access::read)));
  }

  /// The engine, and whether it is to hand the request over.
  using Choice = std::pair<std::uint32_t, bool>;
  Choice give(const std::vector<TokenId>& ids, const std::vector<std::uint32_t>& candidates = {0, 1},
              bool begun = false, bool hands_over = true) {
    const EngineRouter::Request request{.prompt = ids,
                                        .media = media_,
                                        .prompt_tokens = static_cast<std::int64_t>(ids.size()),
                                        .answers = 1,
                                        .answer_tokens = 100,
                                        .prefix = &prefix_,
                                        .begun = begun,
                                        .hands_over = hands_over && !begun};
    const std::uint32_t chosen = router().choose(request, candidates, places_.emplace_back());
    return {chosen, places_.back().hands_over()};
  }
};

TEST_F(PrefillRouterTest, ALongPromptIsComputedElsewhere) {
  EXPECT_EQ(give(prompt(100, 39)), Choice(0, false));
  EXPECT_EQ(give(prompt(200, 40)), Choice(1, true));
  EXPECT_EQ(router().load(1), 40) << "of its answer one token";
  EXPECT_EQ(give(prompt(300, 400), {0, 1}, false, false), Choice(0, false)) << "it may not be";
  EXPECT_EQ(give(prompt(500, 400), {0, 1}, true), Choice(0, false)) << "it has begun";
}

TEST_F(PrefillRouterTest, WhatIsCachedHereIsNoReason) {
  cache(0, prompt(100, 80));
  cache(1, prompt(100, 80));
  const auto with_tail = [](TokenId first, std::size_t tokens) {
    std::vector<TokenId> ids = prompt(100, 80);
    const std::vector<TokenId> tail = prompt(first, tokens);
    ids.insert(ids.end(), tail.begin(), tail.end());
    return ids;
  };
  EXPECT_EQ(give(with_tail(1000, 39)), Choice(0, false));
  EXPECT_EQ(give(with_tail(2000, 40)), Choice(1, true));
  EXPECT_EQ(router().load(1), 40) << "it has the others too";
}

TEST_F(PrefillRouterTest, WhatWasHandedOverIsKnownHere) {
  TimePoint now = TimePoint() + std::chrono::hours(1);
  setup_.now = [&now] { return now; };
  EXPECT_EQ(give(prompt(100, 80)), Choice(1, true));
  EXPECT_EQ(give(prompt(100, 80), {0, 1}, true), Choice(0, false)) << "the same request goes on";
  EXPECT_EQ(give(prompt(100, 100)), Choice(1, true)) << "what was sent here may have gone";
  cache(0, prompt(100, 80));
  now += std::chrono::milliseconds(50);
  EXPECT_EQ(give(prompt(100, 100)), Choice(0, false)) << "the next one finds its blocks";
}

TEST_F(PrefillRouterTest, AQueueThatIsLongForThePromptIsAvoided) {
  EXPECT_EQ(give(prompt(1000, 400)), Choice(1, true));
  EXPECT_EQ(give(prompt(2000, 99)), Choice(0, false)) << "400 tokens are more than four times 99";
  EXPECT_EQ(give(prompt(3000, 100)), Choice(1, true));
  for (int i = 1; i < 8; ++i) give(prompt(10'000 * i, 400));
  EXPECT_LE(router().load(1), 5 * 400 + 100) << "the others are computed here";
  places_.clear();
  EXPECT_EQ(give(prompt(2500, 99)), Choice(1, true));
}

TEST_F(PrefillRouterTest, TheOneWithTheLeastToDoIsChosen) {
  EXPECT_EQ(give(prompt(100, 60), {0, 1, 2}), Choice(1, true));
  EXPECT_EQ(give(prompt(200, 50), {0, 1, 2}), Choice(2, true));
  EXPECT_EQ(give(prompt(300, 50), {0, 1, 2}), Choice(2, true));
  EXPECT_EQ(give(prompt(400, 50), {0, 1, 2}), Choice(1, true));
  router().serves(1, false);
  EXPECT_EQ(give(prompt(500, 50), {0, 1, 2}), Choice(2, true));
}

TEST_F(PrefillRouterTest, APrefillInstanceServesAloneWhereNoOtherEngineCan) {
  EXPECT_EQ(give(prompt(100, 60), {1}), Choice(1, false));
  EXPECT_EQ(give(prompt(200, 60), {1}, true), Choice(1, false));
  EXPECT_EQ(router().load(1), 2 * (60 + 100)) << "with their answers";
  router().serves(0, false);
  EXPECT_EQ(give(prompt(300, 60)), Choice(1, false));
  EXPECT_EQ(give(prompt(400, 60), {0, 1}, true), Choice(0, false)) << "what has begun waits";
  router().serves(1, false);
  EXPECT_EQ(give(prompt(500, 60)), Choice(0, false)) << "nobody can";
}

TEST_F(PrefillRouterTest, OneThatGivesNoSignOfLifeGetsNothing) {
  setup_.responds = [](std::uint32_t engine) { return engine == 0; };
  EXPECT_EQ(give(prompt(100, 60)), Choice(0, false));
}

TEST_F(PrefillRouterTest, TheRuleHoldsUnderEveryPolicy) {
  setup_.policy = config::RoutingPolicy::round_robin;
  cache(0, prompt(100, 80));
  EXPECT_EQ(give(prompt(100, 100)), Choice(0, false));
  EXPECT_EQ(give(prompt(500, 100)), Choice(1, true));
  EXPECT_EQ(give(prompt(900, 20)), Choice(0, false));
}

TEST(CachedNames, FollowsTheTables) {
  std::vector<ipc::BlockNames> tables;
  std::vector<std::shared_ptr<const ipc::BlockNames>> read;
  for (int engine = 0; engine < 3; ++engine) {
    const auto fd = ipc::BlockNames::create(8);
    tables.push_back(*ipc::BlockNames::attach(fd->get()));
    read.push_back(std::make_shared<ipc::BlockNames>(*ipc::BlockNames::attach(fd->get(), ipc::Access::read)));
  }
  CachedNames names(read);
  using Engines = std::set<std::uint32_t>;
  const auto holders = [&names](const BlockHash& name) {
    Engines engines;
    names.for_each_holder(name, [&](const CachedNames::Holder& holder) { engines.insert(holder.engine); });
    return engines;
  };
  const BlockHash a{1, 2}, b{3, 4};
  names.refresh();
  EXPECT_EQ(holders(a), Engines());
  for (ipc::BlockNames& table : tables) table.begin(7);
  tables[0].set(0, {a, 0});
  tables[0].set(5, {a, 0});
  tables[0].set(6, {b, 1});
  tables[1].set(3, {a, 0});
  tables[2].set(2, {a, 0});
  names.refresh();
  EXPECT_EQ(holders(a), Engines({0, 1, 2}));
  EXPECT_EQ(holders(b), Engines({0}));
  tables[0].clear(0);
  tables[0].set(6, {BlockHash{5, 6}, 1});
  tables[1].clear(3);
  names.refresh();
  EXPECT_EQ(holders(a), Engines({0, 2})) << "another block of engine 0 has it";
  EXPECT_EQ(holders(b), Engines());
  EXPECT_EQ(holders(BlockHash{5, 6}), Engines({0}));
  tables[0].clear(5);
  names.refresh();
  EXPECT_EQ(holders(a), Engines({2}));
  tables[1].set(1, {a, 0});
  names.refresh();
  EXPECT_EQ(holders(a), Engines({1, 2}));
  tables[1].distrust();
  names.refresh();
  EXPECT_EQ(holders(a), Engines({2})) << "the entries count no more";
  tables[2].begin(8);
  tables[2].set(0, {b, 0});
  names.refresh();
  EXPECT_EQ(holders(a), Engines()) << "the memory is another";
  EXPECT_EQ(holders(b), Engines({2}));
}

TEST(RecentNames, TheOldestIsForgotten) {
  RecentNames names;
  for (std::uint64_t i = 0; i <= RecentNames::kMost; ++i) {
    names.put({1, i}, 1);
    names.put({1, 0}, 0);  // used again: not the oldest
  }
  EXPECT_EQ(names.engine_of({1, 0}), 0u);
  EXPECT_EQ(names.engine_of({1, 1}), std::nullopt);
  EXPECT_EQ(names.engine_of({1, 2}), 1u);
}

}  // namespace
}  // namespace troupe
