// Sequences with images and videos: what the worker is sent, and which rows wait.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "actors/scheduler/media_work.h"
#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

constexpr TokenId kPlaceholder = 40;
/// An image of four tokens.
constexpr PatchGrid kFour{1, 4, 4};

SequenceItem image(std::int32_t first, std::uint64_t contents = 1, PatchGrid grid = kFour) {
  return {{MediaKind::image, grid, first}, {contents, 77}, {4096 * contents, contents}};
}

struct MediaRig : Rig {
  explicit MediaRig(Setting s = {}, PrefixCaching caching = {false, false, {}}) : Rig(sees(s), {}, caching) {}

  static Setting sees(Setting s) {
    if (s.media_tokens == 0) s.media_tokens = 64;
    return s;
  }

  static SequenceSpec spec(std::uint64_t key, std::int32_t prompt, std::vector<SequenceItem> items,
                           std::int32_t max_output = 4) {
    SequenceSpec spec;
    spec.key = {1, key};
    spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
    for (const SequenceItem& item : items) {
      for (std::int32_t i = std::max(0, item.item.first); i < std::min(prompt, item.item.end()); ++i)
        spec.prompt[static_cast<std::size_t>(i)] = kPlaceholder;
    }
    spec.prompt_tokens = prompt;
    spec.media = std::move(items);
    spec.max_output_tokens = max_output;
    spec.stop_ids = {kStop};
    return spec;
  }
  Status submit_all(std::vector<SequenceSpec> specs, std::uint32_t front = 0) {
    Submit request;
    request.sequences = std::move(specs);
    const Status status = scheduler.submit(request, front);
    exchange();
    return status;
  }
  void see(std::uint64_t key, std::int32_t prompt, std::vector<SequenceItem> items,
           std::int32_t max_output = 4) {
    const Status status = submit_all({spec(key, prompt, std::move(items), max_output)});
    EXPECT_TRUE(status.ok()) << status.message;
  }

  /// What was sent: "media 0/1: 4 10" for items at 4 and 10 of slot 0, generation 1; "encode 0/1 #1 @4096".
  std::vector<std::string> sent() const {
    std::vector<std::string> all;
    for (const std::vector<std::byte>& bytes : media) {
      wire::RecordView of;
      EXPECT_TRUE(wire::RecordView::open(bytes, of));
      const auto name = [](SlotRef slot) {
        return std::to_string(slot.slot) + "/" + std::to_string(slot.generation);
      };
      if (const auto* known = of.as<wire::SequenceMedia>()) {
        std::string line = "media " + name(known->slot) + ":";
        for (const wire::MediaEntry& entry : of.array(known->items))
          line += " " + std::to_string(entry.first);
        all.push_back(line);
      } else if (const auto* asked = of.as<wire::EncodeMedia>()) {
        all.push_back("encode " + name(asked->slot) + " #" + std::to_string(asked->item) + " @" +
                      std::to_string(asked->place.offset) +
                      (asked->front == 0 ? "" : " of front " + std::to_string(asked->front)));
      }
    }
    return all;
  }
  using Sent = std::vector<std::string>;

  /// Rows of the last plan: "0: 4+6" for six positions from 4 of slot 0; "*" where it samples.
  std::string lines() const {
    std::string all;
    for (const wire::PlanRow& row : rows()) {
      all += (all.empty() ? "" : ", ") + std::to_string(row.slot.slot) + ": " + std::to_string(row.position) +
             "+" + std::to_string(row.tokens) + ((row.flags & wire::kSamples) != 0 ? "*" : "");
    }
    return all;
  }

  Committed encoded(SlotRef slot, std::int32_t item, bool failed = false, bool dropped = false) {
    wire::RecordWriter<wire::MediaDone> writer;
    writer.begin(epoch);
    writer.record().slot = slot;
    writer.record().item = item;
    writer.record().failed = failed ? 1 : 0;
    writer.record().dropped = dropped ? 1 : 0;
    writer.record().finished_ns = 500'000'000;
    const Committed verdict = scheduler.media_done(writer.finish(), out);
    exchange();
    return verdict;
  }
  void ready(SlotRef slot, std::int32_t item) { EXPECT_EQ(encoded(slot, item), Committed::applied); }

  void lose_worker() {
    scheduler.detach(Orphans::requeue, {}, out);
    attach(epoch + 1);
    exchange();
  }
};

TEST(Media, RowsRunUpToWhatIsNotEncoded) {
  MediaRig rig({.budget = 64});
  rig.see(1, 20, {image(4), image(10, 2)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/1: 4 10", "encode 0/1 #0 @4096", "encode 0/1 #1 @8192"}));
  EXPECT_EQ(rig.lines(), "0: 0+4");
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), MediaRig::Sent{});
  rig.ready({0, 1}, 0);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), MediaRig::Sent{}) << "each is asked for once";
  EXPECT_EQ(rig.lines(), "0: 4+6");
  rig.commit(0);
  rig.commit(0);
  rig.ready({0, 1}, 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 10+10*");
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 20+1*");
  EXPECT_EQ(rig.scheduler.totals().encoded, 2u);
}

TEST(Media, AnItemAtTheBeginningIsSentWithoutAPlan) {
  MediaRig rig({.budget = 64});
  rig.see(1, 10, {image(0)});
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/1: 0", "encode 0/1 #0 @4096"}));
  rig.ready({0, 1}, 0);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), MediaRig::Sent{});
  EXPECT_EQ(rig.lines(), "0: 0+10*");
}

TEST(Media, TheWorkerIsToldWhoseFrontHasThePatches) {
  MediaRig rig({.budget = 64});
  ASSERT_TRUE(rig.submit_all({MediaRig::spec(1, 10, {image(0)})}, 1).ok());
  rig.see(2, 10, {image(0)});
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/1: 0", "encode 0/1 #0 @4096 of front 1", "media 1/1: 0",
                                        "encode 1/1 #0 @4096"}));
}

TEST(Media, TextRunsMeanwhile) {
  MediaRig rig({.budget = 64});
  rig.see(1, 10, {image(2)});
  rig.add(2, 7, 5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 0+2, 1: 0+7*");
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "1: 7+1*");
  rig.commit(5);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "1: 8+1*");
}

// First those that rows wait for, in the order of admission; few at once.
TEST(Media, FewAreEncodedAtOnce) {
  MediaRig rig({.budget = 64});
  for (std::uint64_t key = 1; key <= 3; ++key) rig.see(key, 14, {image(1, 2 * key), image(6, 2 * key + 1)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(),
            (MediaRig::Sent{"media 0/1: 1 6", "encode 0/1 #0 @8192", "media 1/1: 1 6", "encode 1/1 #0 @16384",
                            "media 2/1: 1 6", "encode 2/1 #0 @24576", "encode 0/1 #1 @12288"}));
  rig.ready({0, 1}, 0);
  rig.plan();
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"encode 1/1 #1 @20480"}));
}

TEST(Media, WhatIsFoundInThePrefixCacheIsNotEncoded) {
  MediaRig rig({.blocks = 80, .budget = 64}, kCachesAll);
  rig.see(1, 20, {image(2), image(10, 2)});
  ASSERT_TRUE(rig.plan());
  rig.ready({0, 1}, 0);
  rig.ready({0, 1}, 1);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  rig.commit(MediaRig::kStop);
  EXPECT_EQ(rig.lines(), "0: 2+18*");

  rig.see(2, 20, {image(2), image(10, 2)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/2: 2 10"})) << "positions are known by it";
  EXPECT_EQ(rig.lines(), "0: 16+4*");
  rig.commit(MediaRig::kStop);

  // Blocks of four: those before the second image are found, but of it nothing.
  rig.see(3, 20, {image(2), image(10, 3)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/3: 2 10", "encode 0/3 #1 @12288"}));
  EXPECT_EQ(rig.lines(), "0: 8+2");
  rig.ready({0, 3}, 1);
  rig.commit(0);
  ASSERT_TRUE(rig.plan());
  rig.commit(MediaRig::kStop);

  // Its beginning is found, its end is not: the second block continues otherwise.
  SequenceSpec other = MediaRig::spec(4, 20, {image(2), image(10, 2)});
  other.prompt[15] = 7;
  ASSERT_TRUE(rig.submit_all({other}).ok());
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/4: 2 10", "encode 0/4 #1 @8192"}));
  rig.ready({0, 4}, 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 12+8*");
}

TEST(Media, ChoicesOfAPromptEncodeItOnce) {
  MediaRig rig({.budget = 64});
  SequenceSpec second = MediaRig::spec(2, 12, {}), third = MediaRig::spec(3, 12, {});
  for (SequenceSpec* choice : {&second, &third}) {
    choice->parent = {1, 1};
    choice->prompt.clear();
  }
  ASSERT_TRUE(rig.submit_all({MediaRig::spec(1, 12, {image(3)}), second, third}).ok());
  ASSERT_TRUE(rig.plan());
  rig.ready({0, 1}, 0);
  rig.commit(0);
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 1/1: 3", "media 2/1: 3"})) << "their positions follow from it";
  EXPECT_EQ(rig.lines(), "0: 12+1*, 1: 11+1*, 2: 11+1*");
  EXPECT_EQ(rig.scheduler.totals().encoded, 1u);
}

// The worker has memory for one image of four tokens and a half.
TEST(Media, SequencesWaitForMemoryOfTheEncodersOutput) {
  MediaRig rig({.budget = 64, .media_tokens = 6});
  rig.see(1, 12, {image(3), image(7, 2)});
  rig.see(2, 12, {image(3, 3)});
  rig.add(3, 5, 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/1: 3 7", "encode 0/1 #0 @4096"})) << "no room for more";
  EXPECT_EQ(rig.lines(), "0: 0+3, 1: 0+5*") << "text does not wait";
  rig.ready({0, 1}, 0);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), MediaRig::Sent{});
  EXPECT_EQ(rig.lines(), "0: 3+4");
  rig.commit(5);
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), MediaRig::Sent{}) << "its last token is still running";
  rig.commit(5);
  EXPECT_FALSE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"encode 0/1 #1 @8192"}));
  EXPECT_EQ(rig.scheduler.waiting(), 1);
  rig.ready({0, 1}, 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 7+5*");
  rig.commit(5);
  EXPECT_EQ(rig.scheduler.waiting(), 0) << "what is used up has no reservation";
  rig.plan();
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 1/2: 3", "encode 1/2 #0 @12288"}));
}

// A large one waits for its turn; no smaller one takes its room again and again.
TEST(Media, NoneOvertakesOneThatWaitsForSuchMemory) {
  MediaRig rig({.budget = 64, .media_tokens = 12});
  rig.see(1, 12, {image(3)});
  rig.see(2, 20, {image(3, 2, {1, 4, 12})});
  rig.see(3, 12, {image(3, 3)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.scheduler.running(), 1);
  rig.ready({0, 1}, 0);
  ASSERT_TRUE(rig.plan());
  rig.commit(0);
  rig.commit(5);
  EXPECT_EQ(rig.scheduler.running(), 2);
  EXPECT_EQ(rig.scheduler.waiting(), 1);
}

TEST(Media, APlanTellsTheWorkerToDropWhatAnEndedSequenceHolds) {
  MediaRig rig({.budget = 64, .media_tokens = 4});
  rig.see(1, 12, {image(0)});
  rig.see(2, 12, {image(3, 2)});
  EXPECT_FALSE(rig.plan());
  rig.scheduler.cancel({1, 1});
  rig.exchange();
  EXPECT_EQ(rig.scheduler.waiting(), 1) << "the worker still has it";
  ASSERT_TRUE(rig.plan()) << "nothing but the end of a sequence that it never started";
  EXPECT_EQ(rig.view.array(rig.header().finished).size(), 1u);
  EXPECT_EQ(rig.rows().size(), 0u);
  rig.commit(0);
  EXPECT_EQ(rig.scheduler.running(), 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/2: 3", "encode 0/2 #0 @8192"}));
  EXPECT_EQ(rig.encoded({0, 1}, 0, false, true), Committed::stale) << "it was dropped on the way";
  EXPECT_EQ(rig.encoded({0, 1}, 0), Committed::malformed) << "twice";
  rig.ready({0, 2}, 0);
  rig.commit(0);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.lines(), "0: 3+9*");
}

TEST(Media, WithoutItsPatchesASequenceEnds) {
  MediaRig rig({.budget = 64});
  rig.see(1, 12, {image(3)});
  rig.add(2, 5, 5);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.encoded({0, 1}, 0, true), Committed::applied);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].key, (RequestKey{1, 1}));
  EXPECT_EQ(rig.events()[0].finish, Finish::error);
  EXPECT_NE(rig.error_of(rig.events()[0].key).find("not available any more"), std::string::npos);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.view.array(rig.header().finished).size(), 1u);
  EXPECT_EQ(rig.lines(), "1: 5+1*");
  EXPECT_EQ(rig.scheduler.totals().encoded, 0u);
}

TEST(Media, AnswersThatNobodyAskedForAreFaults) {
  MediaRig rig({.budget = 64});
  rig.see(1, 12, {image(3)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.encoded({0, 1}, 1), Committed::malformed);
  EXPECT_EQ(rig.encoded({0, 2}, 0), Committed::malformed);
  EXPECT_EQ(rig.scheduler.media_done({}, rig.out), Committed::malformed);
  rig.epoch += 1;
  EXPECT_EQ(rig.encoded({0, 1}, 0), Committed::stale);
  rig.epoch -= 1;
  EXPECT_EQ(rig.encoded({0, 1}, 0, false, true), Committed::malformed) << "its sequence has its slot";
}

TEST(Media, APreemptedSequenceIsEncodedAgain) {
  MediaRig rig({.blocks = 8, .budget = 64, .max_length = 32});
  rig.add(1, 12, 20);
  rig.see(2, 12, {image(3)}, 20);
  ASSERT_TRUE(rig.plan());
  rig.ready({1, 1}, 0);
  std::vector<std::string> sent;
  for (int i = 0; i < 100 && sent.empty(); ++i) {
    while (sent.empty() && rig.plan()) sent = rig.sent();
    if (sent.empty()) sent = rig.sent();
    if (!rig.steps.empty()) rig.commit(5);
  }
  EXPECT_GT(rig.scheduler.totals().preempted, 0u);
  EXPECT_EQ(sent, (MediaRig::Sent{"media 0/2: 3", "encode 0/2 #0 @4096"}));
}

TEST(Media, AfterAWorkersDeathEverythingIsSentAgain) {
  MediaRig rig({.budget = 64});
  rig.see(1, 12, {image(3)});
  ASSERT_TRUE(rig.plan());
  rig.ready({0, 1}, 0);
  rig.commit(0);
  rig.lose_worker();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.sent(), (MediaRig::Sent{"media 0/1: 3", "encode 0/1 #0 @4096"}));
  EXPECT_EQ(rig.lines(), "0: 0+3");
}

// An image on which two workers die, one after the other: found though no plan named its sequence.
TEST(Media, OneThatIsBeingEncodedIsInFlight) {
  MediaRig rig({.budget = 64});
  rig.see(1, 12, {image(0)});
  rig.see(2, 12, {image(0, 2)});
  rig.add(3, 5, 50);
  ASSERT_TRUE(rig.plan());
  rig.ready({0, 1}, 0);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  rig.commit(5);  // the first has a token; the second is still being encoded
  rig.lose_worker();

  // The suspect is alone: its encoding begins when no other runs, and none runs meanwhile.
  std::optional<SlotRef> suspect;
  for (int i = 0; i < 20 && !suspect; ++i) {
    const bool planned = rig.plan();
    for (const std::string& line : rig.sent()) {
      if (line.ends_with("@8192")) suspect = SlotRef{static_cast<std::uint32_t>(line[7] - '0'), 1};
    }
    if (suspect) {
      EXPECT_TRUE(!planned || rig.rows().empty());
      EXPECT_TRUE(rig.steps.empty());
      EXPECT_EQ(rig.sent().back().substr(0, 6), "encode");
      break;
    }
    if (rig.steps.empty()) continue;
    rig.commit(5);
  }
  ASSERT_TRUE(suspect);
  EXPECT_FALSE(rig.plan());
  rig.scheduler.detach(Orphans::requeue, {}, rig.out);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].key, (RequestKey{1, 2}));
  EXPECT_EQ(rig.events()[0].finish, Finish::poisoned);
}

TEST(Media, WhatCannotBeIsRefused) {
  MediaRig rig({.max_length = 60, .media_tokens = 30});
  const auto refused = [&](std::vector<SequenceItem> items, const std::string& part,
                           Code code = Code::invalid_argument) {
    const Status status = rig.submit_all({MediaRig::spec(1, 20, std::move(items))});
    EXPECT_EQ(status.code, code) << part;
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  };
  refused({image(2), image(5)}, "1 of the prompt has the tokens from 5 to 9; they must lie behind 6");
  refused({image(-1)}, "from -1 to 3");
  refused({image(16)}, "before the last of 20");
  refused({image(2, 1, {1, 3, 4})}, "1 × 3 × 4 patches, which cannot be");
  refused({image(2, 1, {2, 4, 4})}, "cannot be");
  refused({image(2, 1, {1, 2147483646, 2147483646})}, "cannot be");
  refused({image(2, 1, {1, 8, 16})}, "has 32 tokens; at most 30 can be encoded");
  SequenceItem gone = image(2);
  gone.place = {};
  refused({gone}, "found no room in the engine's memory", Code::overloaded);
  SequenceSpec uneven = MediaRig::spec(1, 20, {image(2)});
  uneven.prompt[4] = 5;
  EXPECT_FALSE(rig.submit_all({uneven}).ok());
  SequenceSpec choice = MediaRig::spec(2, 20, {image(2)});
  choice.parent = {1, 1};
  choice.prompt.clear();
  EXPECT_FALSE(rig.submit_all({MediaRig::spec(1, 20, {image(2)}), choice}).ok());
  Rig blind;
  Submit request;
  request.sequences.push_back(MediaRig::spec(1, 20, {image(2)}));
  EXPECT_NE(blind.scheduler.submit(request).message.find("takes no images"), std::string::npos);
}

// The next worker has less memory: what can never be encoded does not wait for ever.
TEST(Media, AWorkerWithLessMemoryEndsWhatDoesNotFit) {
  MediaRig rig({.budget = 64, .media_tokens = 8});
  rig.see(1, 12, {image(0, 1, {1, 4, 8})});
  EXPECT_FALSE(rig.plan());
  rig.capacity.media_tokens = 4;
  rig.lose_worker();
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].finish, Finish::aborted);
}

}  // namespace
}  // namespace troupe::test
