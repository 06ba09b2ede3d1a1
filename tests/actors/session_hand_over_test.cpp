// What a SESSION HOST does with requests whose prompts a prefill instance computes.
#include "actors/session_host_rig.h"
#include "support/prefill_router.h"

namespace troupe {
namespace {

class SessionHandOverTest : public testing::SessionHostRig {
 protected:
  SessionHandOverTest() {
    parts_.engines = {std::make_shared<Engine>(*this, 0), std::make_shared<Engine>(*this, 1)};
    parts_.grammars = {grammar_, grammar_};
    parts_.router = testing::make_prefill_router();
    SessionContext context = *parts_.context;
    context.max_model_len = 1024;  // several blocks
    parts_.context = std::make_shared<SessionContext>(std::move(context));
    host_ = keep(system_.spawn(session_host_behavior, std::move(parts_)));
    for (const std::uint32_t engine : {0u, 1u}) self_->send(host_, EngineUp{engine, 1});
  }

  using Engines = std::vector<std::uint32_t>;
};

TEST_F(SessionHandOverTest, TheFirstTokenIsSentAndTheRequestGoesOn) {
  open(true);
  ASSERT_EQ(submitted_to_, Engines{1});
  EXPECT_EQ(submits_[0].sequences.at(0).max_output_tokens, 1);
  tokens("a", Finish::length);
  EXPECT_NE(bytes_of(3).find(R"("content":"a")"), std::string::npos);
  ASSERT_EQ(submitted_to_, (Engines{1, 0}));
  EXPECT_EQ(submits_[1].attempt, 1u);
  EXPECT_EQ(submits_[1].sequences.at(0).output, std::vector<TokenId>{'a'});
  tokens("b", Finish::length);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  EXPECT_TRUE(cancels_.empty());
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].output_tokens, 2);
  EXPECT_TRUE(finished_[0].handed_over);
}

TEST_F(SessionHandOverTest, NobodyWaitsForAPrefillInstance) {
  open(true);
  self_->send(host_, EngineDown{1, 2, "killed"});
  run();
  EXPECT_EQ(submitted_to_, (Engines{1, 0}));
  self_->send(host_, EngineUp{1, 2});
  run();
  EXPECT_EQ(submits_.size(), 2u);
  tokens("ab", Finish::length);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(finished_[0].given_back);
}

TEST_F(SessionHandOverTest, AClientThatLeavesIsToldTheEngineThatHasItsRequest) {
  open(true);
  withdraw();
  ASSERT_EQ(cancels_.size(), 1u);
  open(true, 4);
  ASSERT_EQ(submitted_to_, (Engines{1, 1}));
}

TEST_F(SessionHandOverTest, TheEngineThatGoesOnIsToldWhichBlocksToExpect) {
  text_.prompts = {std::vector<TokenId>(200, 'h')};
  open(true);
  ASSERT_EQ(submitted_to_, Engines{1});
  EXPECT_TRUE(submits_[0].hands_over);
  ASSERT_EQ(expected_at_, Engines{0});
  EXPECT_EQ(expected_[0].key, submits_[0].sequences.at(0).key);
  EXPECT_EQ(expected_[0].names.size(), 3u) << "its full blocks of 64 tokens";
  EXPECT_TRUE(forgotten_.empty());
  withdraw();
  EXPECT_EQ(forgotten_, std::vector<RequestKey>{expected_[0].key});
}

TEST_F(SessionHandOverTest, NothingIsExpectedOfAShortPrompt) {
  open(true);
  EXPECT_TRUE(expected_.empty()) << "it has no full block";
}

TEST_F(SessionHandOverTest, AFormThatThePrefillInstanceDoesNotCompileIsAskedForHere) {
  open(false, 3, 100, std::chrono::hours(1), {http::AnswerForm::Kind::regex, "a+", "guided_regex"});
  ASSERT_EQ(compiles_.size(), 1u);
  EXPECT_TRUE(submits_.empty());
  compiled(0, {failure(Code::unsupported, "no forms here"), 0});
  EXPECT_TRUE(answers_.empty());
  EXPECT_TRUE(submits_.empty());
}

}  // namespace
}  // namespace troupe
