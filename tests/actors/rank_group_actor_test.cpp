// RANK GROUP among others: what all ranks are told, who hears of them as one, and how the engine ends when
// they contradict each other.
#include "actors/worker/rank_group_actor.h"

#include <memory>
#include <string>
#include <vector>

#include "actors/record_bytes.h"
#include "actors/root_actor.h"
#include "actors/worker/step_digest.h"
#include "support/actor_world.h"
#include "support/heard_log.h"

namespace troupe {
namespace {

using testing::HeardLog;
using testing::log_of;

class RankGroupActorTest : public testing::ActorWorld {
 protected:
  RankGroupActorTest() {
    for (int rank = 0; rank < 2; ++rank) {
      const caf::actor link = keep(system_.spawn([this, rank](caf::event_based_actor*) -> caf::behavior {
        const auto keep_it = [this, rank](const Bytes& record) {
          plans.push_back(std::to_string(rank) + std::string(record.begin(), record.end()));
        };
        return {[keep_it](const SendPlan& plan) { keep_it(plan.record); },
                [keep_it](const SendMedia& media) { keep_it(media.record); }};
      }));
      links.push_back(caf::actor_cast<workers_actor>(link));
    }
    const caf::actor listener = keep(system_.spawn([this](caf::event_based_actor*) -> caf::behavior {
      return {[this](const LinkUp& up) { link_events.push_back("up " + std::to_string(up.epoch)); },
              [this](const LinkDown& down) { link_events.push_back("down: " + down.why); },
              [this](const StepDone&) { link_events.push_back("step"); },
              [this](const MediaReport&) { link_events.push_back("media"); }};
    }));
    group = system_.spawn(rank_group_behavior, RankGroupParts{links, log_of("rank_group", heard)});
    RootParts parts;
    parts.children.push_back({"rank_group", OnDown::escalate, caf::actor_cast<caf::actor>(group), {}});
    parts.log = log_of("root", heard);
    const auto root = keep(system_.spawn(root_behavior, std::move(parts)));
    // The world kills it after this object's members are gone.
    root->attach_functor([this, said = end](const caf::error& reason) {
      *said = reason ? system_.render(reason) : "it ended";
    });
    self_->send(group, Attach{{}, caf::actor_cast<scheduler_actor>(listener), {}});
    run();
  }

  void up(std::int32_t rank, std::uint32_t epoch) {
    LinkUp link;
    link.epoch = epoch;
    link.capacity.kv_blocks = 10;
    self_->send(group, RankUp{rank, link});
    run();
  }
  /// The rank has sampled this token in step 1.
  void answer(std::int32_t rank, TokenId token) {
    wire::RecordWriter<wire::StepResult> result;
    result.begin(1);
    const auto tokens = result.array(std::vector<TokenId>{token});
    const auto rows = result.array(std::vector<wire::ResultRow>{{{1, 2}, 0, 1}});
    result.record().step = 1;
    result.record().tokens = tokens;
    result.record().rows = rows;
    const auto bytes = result.finish();
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(bytes, view));
    wire::RecordWriter<wire::StepEnd> other;
    other.begin(1);
    other.record().step = 1;
    other.record().digest = digest_of(view);
    self_->send(group, RankStepDone{rank, to_bytes(rank == 0 ? bytes : other.finish())});
    run();
  }

  std::shared_ptr<HeardLog> heard = std::make_shared<HeardLog>();
  std::vector<workers_actor> links;
  rank_group_actor group;
  std::vector<std::string> plans, link_events;
  const std::shared_ptr<std::string> end =
      std::make_shared<std::string>();  // why the root has ended; empty: it has not
};

TEST_F(RankGroupActorTest, AllAreToldAndAnswerAsOne) {
  up(1, 1);
  EXPECT_TRUE(link_events.empty());
  up(0, 1);
  EXPECT_EQ(link_events, std::vector<std::string>{"up 1"});
  self_->send(group, SendPlan{{'p', 'l', 'a', 'n'}});
  run();
  EXPECT_EQ(plans, (std::vector<std::string>{"0plan", "1plan"}));
  answer(1, 5);
  answer(0, 5);
  EXPECT_EQ(link_events.back(), "step");
  self_->send(group, SendMedia{{'i', 't', 'e', 'm'}});
  run();
  EXPECT_EQ(plans.back(), "1item");
  wire::RecordWriter<wire::MediaDone> done;
  done.begin(1);
  const Bytes record = to_bytes(done.finish());
  for (const std::int32_t rank : {0, 1}) {
    EXPECT_EQ(link_events.back(), "step");
    self_->send(group, RankMediaReport{rank, record});
    run();
  }
  EXPECT_EQ(link_events.back(), "media");
  self_->send(group, RankDown{1, "the worker was restarted"});
  run();
  EXPECT_EQ(link_events.back(), "down: rank 1: the worker was restarted");
  EXPECT_TRUE(heard->has("rank_group group_down why=rank 1: the worker was restarted"));
  EXPECT_EQ(*end, "");
}

TEST_F(RankGroupActorTest, RanksThatSampleOtherTokensEndTheEngineWhichSaysWhy) {
  up(0, 1);
  up(1, 1);
  answer(0, 5);
  EXPECT_EQ(*end, "");
  answer(1, 6);
  const std::string why = "rank 1 has sampled other tokens than rank 0 in step 1";
  EXPECT_NE(end->find("rank_group: "), std::string::npos) << *end;
  EXPECT_NE(end->find(why), std::string::npos) << "the engine's last words: " << *end;
  EXPECT_TRUE(heard->has("rank_group ranks_disagree why=" + why));
  EXPECT_TRUE(heard->has("root actor_down name=rank_group"));
  EXPECT_EQ(link_events, std::vector<std::string>{"up 1"}) << "no result of that step";
}

}  // namespace
}  // namespace troupe
