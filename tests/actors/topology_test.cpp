#include "actors/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "actors/media/media_parts.h"
#include "support/byte_tokenizer.h"
#include "support/patience.h"

namespace troupe {
namespace {

/// The real actors of front and engine, with a link between them and links that no worker attaches to.
struct Actors {
  std::shared_ptr<Link> link;  ///< the front's end
  std::unique_ptr<FrontSystem> front;
  std::unique_ptr<EngineSystem> engine;

  std::vector<Arrow> arrows() const {
    std::vector<Arrow> all = front->arrows();
    all.insert(all.end(), engine->arrows().begin(), engine->arrows().end());
    return all;
  }
};

Actors start_actors(int ranks = 2, std::shared_ptr<ipc::BlockNames> names = nullptr, bool sees = true) {
  auto between = ipc::create_link();
  EXPECT_TRUE(between.ok());
  auto upper = ipc::UpperEnd::attach(between->step.get(), between->cache.get());
  auto lower = ipc::LowerEnd::attach(between->step.get(), between->cache.get());
  EXPECT_TRUE(upper.ok() && lower.ok());
  const auto tokenizer = std::make_shared<testing::ByteTokenizer>();

  EngineSetup engine;
  engine.block_names = std::move(names);
  for (int rank = 0; rank < ranks; ++rank) {
    auto fds = ipc::create_link();
    EXPECT_TRUE(fds.ok());
    auto link = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
    EXPECT_TRUE(link.ok());
    engine.links.push_back(std::make_shared<ipc::UpperEnd>(*std::move(link)));
  }
  engine.fronts = {std::make_shared<Link>(*std::move(lower))};
  engine.texts = VocabularyImage::copy_of(*tokenizer);
  engine.vocabulary = 258;
  engine.options.scheduler.max_num_seqs = 3;
  engine.log = [](const std::string&) { return Log(); };

  FrontSetup front;
  front.engines = {std::make_shared<Link>(*std::move(upper))};
  for (int i = 0; i < 2; ++i) {
    auto fds = ipc::create_link();
    EXPECT_TRUE(fds.ok());
    auto end = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
    EXPECT_TRUE(end.ok());
    front.texts.push_back(std::make_shared<Link>(*std::move(end)));
  }
  front.sessions = std::make_shared<SessionContext>(SessionContext{tokenizer, {}, 64, 258});
  const auto patches = ipc::PatchRegion::create(1 << 20);
  EXPECT_TRUE(patches.ok());
  auto media = media_parts({}, patches->get(), {}, {});
  EXPECT_TRUE(media.ok());
  if (sees) front.media = *std::move(media);
  front.io_threads = 2;
  front.health = std::make_shared<HealthCell>();
  front.deliver = [](std::uint32_t, std::vector<http::Output>&&) {};
  front.log = [](const std::string&) { return Log(); };
  const auto link = front.engines.front();
  return {link, std::make_unique<FrontSystem>(std::move(front)),
          std::make_unique<EngineSystem>(std::move(engine))};
}

// When this fails, replace the file by what is printed.
TEST(Topology, TheDocumentIsWrittenFromTheTableAndTheActorsThatRun) {
  const Actors actors = start_actors();
  std::ifstream file(TROUPE_TEST_DATA "/../../docs/topology.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), topology_markdown(actors.arrows()));
}

TEST(Topology, EveryRowIsAnActorThatAnotherOneSendsTo) {
  const Actors actors = start_actors();
  const auto arrows = actors.arrows();
  for (const Role& role : kRoles) {
    EXPECT_TRUE(std::any_of(arrows.begin(), arrows.end(), [&](const Arrow& a) { return a.to == role.name; }))
        << role.name;
  }
}

TEST(Topology, TheDeathOfAPartLeavesNamesOfBlocksThatAreNotTrusted) {
  auto fd = ipc::BlockNames::create(8);
  ASSERT_TRUE(fd.ok());
  auto table = ipc::BlockNames::attach(fd->get());
  ASSERT_TRUE(table.ok());
  const auto names = std::make_shared<ipc::BlockNames>(*std::move(table));
  {
    Actors actors = start_actors(1, names);
    names->begin(5);
    actors.engine.reset();
    EXPECT_EQ(names->memory(), 5u) << "an engine that was asked to end leaves names that hold";
  }
  Actors actors = start_actors(1, names);
  actors.link->send(MessageType::step_stats, 0, {});  // no front sends these
  const TimePoint end = Clock::now() + test::kPatience;
  while (actors.engine->alive() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_FALSE(actors.engine->alive());
  EXPECT_EQ(names->memory(), 0u);
}

TEST(Topology, EveryActorAnswersAProbe) {
  const Actors actors = start_actors();
  const auto front = actors.front->actors(std::chrono::seconds(60));
  ASSERT_TRUE(front.ok()) << front.status().message;
  const auto engine = actors.front->engine_actors(std::chrono::seconds(60));  // through the link
  ASSERT_TRUE(engine.ok()) << engine.status().message;
  std::vector<std::string> names;
  for (const auto* reports : {&*front, &*engine}) {
    for (const ActorReport& actor : *reports) {
      EXPECT_TRUE(actor.answered) << actor.name << " " << actor.number;
      if (names.empty() || names.back() != actor.name) names.push_back(actor.name);
    }
  }
  std::vector<std::string> roles;
  for (const Role& role : kRoles) roles.emplace_back(role.name);
  EXPECT_EQ(names, roles);
}

TEST(Topology, OneRankHasNoGroup) {
  const Actors actors = start_actors(1);
  const auto& arrows = actors.engine->arrows();
  const auto has = [&arrows](const Arrow& arrow) {
    return std::count(arrows.begin(), arrows.end(), arrow) == 1;
  };
  EXPECT_TRUE(has({"scheduler", "worker_link"}) && has({"worker_link", "scheduler"}));
  EXPECT_EQ(topology_json(arrows).find("rank_group"), std::string::npos);
}

TEST(Topology, OfAModelThatDoesNotSeeThereIsNoMedia) {
  const Actors actors = start_actors(1, nullptr, false);
  for (const Arrow& arrow : actors.arrows()) EXPECT_NE(arrow.to, "media");
  EXPECT_EQ(topology_json(actors.arrows()).find("\"media\""), std::string::npos);
}

TEST(Topology, BothSystemsAnswerAndEnd) {
  Actors actors = start_actors();
  auto asked = actors.front->ask_status(std::chrono::seconds(60));
  const auto status = asked.get();
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->state, "loading");
  EXPECT_EQ(status->scheduler.max_running, 3) << "the engine's part came through the link";
  EXPECT_TRUE(actors.front->alive() && actors.engine->alive());
  actors.engine.reset();  // would hang if an actor stayed
  const auto without = actors.front->ask_status(std::chrono::milliseconds(200)).get();
  ASSERT_TRUE(without.has_value()) << "the front answers without an engine";
  EXPECT_EQ(without->scheduler.max_running, 0);
  actors.front.reset();
}

}  // namespace
}  // namespace troupe
