#include "actors/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

/// The real cast, with links that no worker attaches to.
std::unique_ptr<Cast> start_cast(int ranks = 2) {
  CastSetup setup;
  for (int rank = 0; rank < ranks; ++rank) {
    auto fds = ipc::create_link();
    EXPECT_TRUE(fds.ok());
    auto link = ipc::EngineEnd::attach(fds->step.get(), fds->cache.get());
    EXPECT_TRUE(link.ok());
    setup.links.push_back(std::make_shared<ipc::EngineEnd>(*std::move(link)));
  }
  const auto tokenizer = std::make_shared<testing::ByteTokenizer>();
  setup.encoder = std::make_shared<Encoder>(tokenizer, nullptr);
  setup.tokenizers = 2;
  setup.sessions = std::make_shared<SessionContext>(SessionContext{tokenizer, {}, 64, 258});
  setup.io_threads = 2;
  setup.health = std::make_shared<HealthCell>();
  setup.deliver = [](std::uint32_t, std::vector<http::Output>&&) {};
  setup.log = [](const std::string&) { return Log(); };
  return std::make_unique<Cast>(std::move(setup));
}

// When this fails, replace the file by what is printed.
TEST(Topology, TheDocumentIsWrittenFromTheTableAndTheActorsThatRun) {
  const auto cast = start_cast();
  std::ifstream file(TROUPE_TEST_DATA "/../../docs/topology.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), topology_markdown(cast->arrows()));
}

TEST(Topology, EveryRowIsAnActorThatAnotherOneSendsTo) {
  const auto cast = start_cast();
  const auto& arrows = cast->arrows();
  for (const Role& role : kRoles) {
    EXPECT_TRUE(std::any_of(arrows.begin(), arrows.end(), [&](const Arrow& a) { return a.to == role.name; }))
        << role.name;
  }
}

TEST(Topology, EveryActorAnswersAProbe) {
  const auto cast = start_cast();
  const auto actors = cast->actors(std::chrono::seconds(60));
  ASSERT_TRUE(actors.ok()) << actors.status().message;
  std::vector<std::string> names;
  for (const ActorReport& actor : *actors) {
    EXPECT_TRUE(actor.answered) << actor.name << " " << actor.number;
    if (names.empty() || names.back() != actor.name) names.push_back(actor.name);
  }
  std::vector<std::string> roles;
  for (const Role& role : kRoles) roles.emplace_back(role.name);
  EXPECT_EQ(names, roles);
}

TEST(Topology, OneRankHasNoGroup) {
  const auto cast = start_cast(1);
  const auto& arrows = cast->arrows();
  const auto has = [&arrows](const Arrow& arrow) { return std::count(arrows.begin(), arrows.end(), arrow) == 1; };
  EXPECT_TRUE(has({"scheduler", "worker_link"}) && has({"worker_link", "scheduler"}));
  EXPECT_EQ(topology_json(arrows).find("rank_group"), std::string::npos);
}

TEST(Topology, ACastAnswersAndEnds) {
  auto cast = start_cast();
  const auto status = cast->status(std::chrono::seconds(60));
  ASSERT_TRUE(status.ok()) << status.status().message;
  EXPECT_EQ(status->state, "loading");
  EXPECT_TRUE(cast->alive());
  cast.reset();  // would hang if an actor stayed
}

}  // namespace
}  // namespace troupe
