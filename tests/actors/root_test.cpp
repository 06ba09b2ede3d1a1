#include "actors/root_actor.h"

#include "support/actor_world.h"

namespace troupe {
namespace {

/// A child that notes its end and dies by an error when it is sent a negative number.
caf::actor spawn_child(caf::actor_system& system, std::string name, std::vector<std::string>& ends) {
  return system.spawn([name, &ends](caf::event_based_actor* self) -> caf::behavior {
    self->attach_functor([name, &ends](const caf::error&) { ends.push_back(name); });
    return {[self](int n) {
      if (n < 0) self->quit(caf::sec::runtime_error);
    }};
  });
}

class RootTest : public testing::ActorWorld {
 protected:
  RootChild child(const std::string& name, OnDown on_down) {
    RootChild out{name, on_down, spawn_child(system_, name, ends_), {}};
    actors_.push_back(out.actor);
    if (on_down == OnDown::restart) {
      out.respawn = [this, name] {
        ++respawned_;
        actors_.push_back(spawn_child(system_, name, ends_));
        return actors_.back();
      };
    }
    return out;
  }

  std::vector<std::string> ends_;
  std::vector<caf::actor> actors_;
  int respawned_ = 0;
};

TEST_F(RootTest, RestartsWhatTheTableSaysAndOnlyThat) {
  RootParts parts;
  parts.children = {child("tokenizer", OnDown::restart), child("scheduler", OnDown::escalate)};
  auto root = keep(system_.spawn(root_behavior, std::move(parts)));
  run();
  self_->send(actors_[0], -1);
  run();
  EXPECT_EQ(respawned_, 1);
  EXPECT_EQ(ends_, std::vector<std::string>{"tokenizer"});
  // The replacement is watched like the first one.
  self_->send(actors_.back(), -1);
  run();
  EXPECT_EQ(respawned_, 2);
  self_->send_exit(root, caf::exit_reason::user_shutdown);
  run();
}

TEST_F(RootTest, ReportsEveryActorWithItsRestarts) {
  const caf::actor answering = system_.spawn([](caf::event_based_actor* self) -> caf::behavior {
    answer_probes(self);
    return {[](int) {}};
  });
  RootParts parts;
  parts.children = {child("tokenizer", OnDown::restart), child("tokenizer", OnDown::restart),
                    RootChild{"scheduler", OnDown::escalate, answering, {}}};
  auto root = keep(system_.spawn(root_behavior, std::move(parts)));
  run();
  self_->send(actors_[1], -1);
  run();
  const auto reports = ask<ActorReports>(root, ProbeAll{});
  ASSERT_EQ(reports.actors.size(), 3u);
  EXPECT_EQ(reports.actors[0].name, "tokenizer");
  EXPECT_EQ(reports.actors[0].restarts, 0);
  EXPECT_FALSE(reports.actors[0].answered);  // this child knows no Probe
  EXPECT_EQ(reports.actors[1].number, 1);
  EXPECT_EQ(reports.actors[1].restarts, 1);
  EXPECT_TRUE(reports.actors[2].answered);
  EXPECT_EQ(reports.actors[2].mailbox, 0);
  EXPECT_GT(reports.actors[2].answer_ns, 0);
  self_->send_exit(root, caf::exit_reason::user_shutdown);
  run();
}

TEST_F(RootTest, AProbeTellsWhatWaitsBehindIt) {
  const caf::actor busy = keep(system_.spawn([](caf::event_based_actor* self) -> caf::behavior {
    answer_probes(self);
    return {[](int) {}};
  }));
  auto pending = self_->request(busy, caf::infinite, Probe{});
  for (int i = 0; i < 3; ++i) self_->send(busy, i);
  run();
  pending.receive([](const ProbeAnswer& answer) { EXPECT_EQ(answer.mailbox, 3); },
                  [&](const caf::error& error) { ADD_FAILURE() << system_.render(error); });
}

TEST_F(RootTest, EscalatesAndTakesEverybodyDownInReverseOrder) {
  RootParts parts;
  parts.children = {child("metrics", OnDown::escalate), child("scheduler", OnDown::escalate),
                    child("gateway", OnDown::escalate)};
  auto root = keep(system_.spawn(root_behavior, std::move(parts)));
  bool down = false;
  root->attach_functor([&](const caf::error& reason) { down = static_cast<bool>(reason); });
  run();
  self_->send(actors_[1], -1);
  run();
  EXPECT_EQ(ends_, (std::vector<std::string>{"scheduler", "gateway", "metrics"}));
  EXPECT_TRUE(down);
}

TEST_F(RootTest, StopsInReverseStartOrder) {
  RootParts parts;
  parts.children = {child("a", OnDown::escalate), child("b", OnDown::restart), child("c", OnDown::escalate)};
  auto root = keep(system_.spawn(root_behavior, std::move(parts)));
  run();
  self_->send_exit(root, caf::exit_reason::user_shutdown);
  run();
  EXPECT_EQ(ends_, (std::vector<std::string>{"c", "b", "a"}));
  EXPECT_EQ(respawned_, 0);  // not while stopping
}

}  // namespace
}  // namespace troupe
