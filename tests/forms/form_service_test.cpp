// Forms through the whole service: who waits for what, what is known, what is refused, and where.
#include "actors/grammar/form_service.h"

#include <gtest/gtest.h>

#include "forms/support/form_service_rig.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

using grammar::Form;
using testing::Gate;

class FormServiceTest : public testing::FormServiceRig {};

TEST_F(FormServiceTest, CompilesOnceForAll) {
  const auto service = serve(setup());
  for (std::uint64_t ticket = 1; ticket <= 8; ++ticket) service->submit(ticket, regex("[a-z]+x"));
  const CompileOutcome first = wait(*service, 1);
  ASSERT_TRUE(first.status.ok()) << first.status.message;
  for (std::uint64_t ticket = 2; ticket <= 8; ++ticket) EXPECT_EQ(wait(*service, ticket).form, first.form);
  service->submit(9, regex("[a-z]+x"));
  EXPECT_EQ(wait(*service, 9).form, first.form);
}

TEST_F(FormServiceTest, FormsThatAreTheSameInOtherWordsAreCompiledOnce) {
  const auto service = serve(setup());
  service->submit(1, schema(R"({"type":"integer"})"));
  const CompileOutcome first = wait(*service, 1);
  ASSERT_TRUE(first.status.ok()) << first.status.message;
  std::uint64_t ticket = 2;
  for (const char* text : {R"( {"type" : "integer"} )", R"({"\u0074ype":"integer"})"}) {
    service->submit(ticket, schema(text));
    EXPECT_EQ(wait(*service, ticket++).form, first.form);
  }
  service->submit(ticket, schema(R"({"type":"integer"})", "structured_outputs.json"));
  EXPECT_EQ(wait(*service, ticket).form, first.form);
}

TEST_F(FormServiceTest, RefusalsNameTheClientsOwnField) {
  const auto service = serve(setup());
  service->submit(1, regex("foo**"));
  const CompileOutcome regex_refusal = wait(*service, 1);
  EXPECT_EQ(regex_refusal.status.code, Code::invalid_argument);
  EXPECT_EQ(regex_refusal.status.param, "guided_regex");
  EXPECT_EQ(regex_refusal.status.reason, "invalid_regex");
  EXPECT_TRUE(regex_refusal.status.message.starts_with("guided_regex cannot be compiled"))
      << regex_refusal.status.message;
  const char* const pattern = R"({"properties":{"a":{"type":"string","pattern":"\\bx"}}})";
  service->submit(2, schema(pattern));
  EXPECT_EQ(wait(*service, 2).status.param, "guided_json.properties.a.pattern");
  service->submit(3, schema(pattern, "structured_outputs.json"));  // from the cache
  EXPECT_EQ(wait(*service, 3).status.param, "structured_outputs.json.properties.a.pattern");
  service->submit(4, schema(R"({"not":{}})"));
  EXPECT_EQ(wait(*service, 4).status.param, "guided_json.not");
  service->submit(5, schema("{"));
  EXPECT_EQ(wait(*service, 5).status.message, "guided_json is not valid JSON");
}

TEST_F(FormServiceTest, RefusalsOfAPartNameItsOwnPlace) {
  const auto service = serve(setup());
  const auto tag = [](const std::string& schema, const char* place) {
    Form form{Form::Kind::structural_tag, R"({"format":{"type":"json_schema","json_schema":)" + schema + "}}",
              "tools"};
    form.places = {{".format.json_schema", place}};
    return form;
  };
  service->submit(1, tag(R"({"not":{}})", "tools.0.input_schema"));  // found before it is compiled
  const CompileOutcome refused = wait(*service, 1);
  EXPECT_EQ(refused.status.param, "tools.0.input_schema.not");
  EXPECT_TRUE(refused.status.message.starts_with("tools.0.input_schema.not ")) << refused.status.message;
  const char* const pattern = R"({"properties":{"a":{"type":"string","pattern":"\\bx"}}})";
  std::uint64_t ticket = 2;
  for (const char* place :
       {"tools.7.parameters", "tools.0.function.parameters"}) {  // the second from the cache
    service->submit(ticket, tag(pattern, place));
    const CompileOutcome outcome = wait(*service, ticket++);
    EXPECT_EQ(outcome.status.param, std::string(place) + ".properties.a.pattern");
    EXPECT_TRUE(outcome.status.message.starts_with(outcome.status.param + " ")) << outcome.status.message;
  }
}

TEST_F(FormServiceTest, SchemasThatOnceEndedTheEngineAreRefused) {
  const auto service = serve(setup());
  std::uint64_t ticket = 0;
  for (const auto& [second, place] :
       {std::pair{R"({"$ref":5})", "$ref"}, {R"({"type":"array","items":{},"minItems":"x"})", "minItems"}}) {
    service->submit(++ticket, schema(std::string(R"({"type":"object","properties":{"a/b":{},"a\u0001b":)") +
                                     second + "}}"));
    const Status refusal = wait(*service, ticket).status;
    EXPECT_EQ(refusal.code, Code::invalid_argument) << refusal.message;
    EXPECT_EQ(refusal.param, std::string("guided_json.properties.a\x01"
                                         "b.") +
                                 place);
  }
}

// A token is named by what it prints, so the process knows the model's vocabulary.
TEST_F(FormServiceTest, TokensAreThoseOfTheModel) {
  const auto service = serve(setup());
  const auto tag = [](const char* token) {
    return Form{Form::Kind::structural_tag,
                std::string(R"({"format":{"type":"token","token":")") + token + "\"}}", "structural_tag"};
  };
  service->submit(1, tag("<|end|>"));
  const CompileOutcome known = wait(*service, 1);
  ASSERT_TRUE(known.status.ok()) << known.status.message;
  EXPECT_TRUE(grammar::Matcher(known.form).accept(testing::ByteTokenizer::kEnd));
  service->submit(2, tag("<|begin|>"));
  EXPECT_EQ(wait(*service, 2).status.message,
            "structural_tag.format.token is \"<|begin|>\", which is no token of this model");
}

TEST_F(FormServiceTest, LimitsAndWhiteSpaceAreThoseOfTheServer) {
  FormServiceSetup strict = setup();
  strict.process.form_limits.text_bytes = 4;
  strict.process.any_whitespace = false;
  const auto service = serve(std::move(strict));
  service->submit(1, regex("abcde"));
  EXPECT_EQ(wait(*service, 1).status.message, "guided_regex has 5 bytes; at most 4 are allowed");
  service->submit(2, schema(R"({"type":"array","items":{"type":"null"}})"));
  const CompileOutcome outcome = wait(*service, 2);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
  grammar::Matcher matcher(outcome.form);
  EXPECT_TRUE(matcher.accept('['));
  EXPECT_FALSE(matcher.accept(' '));
}

// Its tables are most of what GRAMMAR takes: a server without forms has none.
TEST_F(FormServiceTest, TheVocabularyIsSortedWhenTheFirstFormIsCompiled) {
  const FormServiceSetup all = setup();
  const auto service = serve(all);
  service->submit(1, {Form::Kind::regex, "7", "guided_regex"});
  EXPECT_FALSE(wait(*service, 1).status.ok());
  EXPECT_FALSE(all.process.vocabulary->has_table()) << "it is refused before it is compiled";
  service->submit(2, regex("a"));
  EXPECT_TRUE(wait(*service, 2).status.ok());
  EXPECT_TRUE(all.process.vocabulary->has_table());
}

TEST_F(FormServiceTest, AFormThatUsedUpItsTimeIsRefusedAtOnceThen) {
  FormServiceSetup short_times = setup();
  short_times.process.times = {std::chrono::milliseconds(200), 500};
  const auto service = serve(std::move(short_times));
  std::uint64_t ticket = 0;
  for (const auto& [text, doing] : {std::pair{"spin", "compiling"}, {"check spin", "checking"}}) {
    service->submit(++ticket, regex(text));
    EXPECT_EQ(wait(*service, ticket).status.reason, "grammar_too_complex");
    for (const char* hang : {"hang1", "hang2", "check hang3"})  // all processes are taken
      service->submit(++ticket, regex(std::string(hang) + doing));
    service->submit(++ticket, regex(text));
    EXPECT_EQ(wait(*service, ticket).status.message,
              std::string("guided_regex is too complex: ") + doing + " it takes longer than 200 ms");
  }
}

TEST_F(FormServiceTest, FormsBeyondThoseThatMayWaitAreRefused) {
  FormServiceSetup small = patient_setup();
  small.most_waiting = 2;
  const auto service = serve(std::move(small));
  service->submit(1, regex("known"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 9; ++ticket)
    service->submit(ticket, regex("check hang" + std::to_string(ticket)));
  // Three at most are checked, two wait: three or more are refused, as the processes take theirs early or
  // late.
  for (const std::uint64_t ticket : wait_for(1 + 3)) {
    if (ticket == 1) continue;
    const CompileOutcome refused = service->take(ticket);
    EXPECT_EQ(refused.status.code, Code::overloaded);
    EXPECT_EQ(refused.status.reason, "grammar_queue_full");
    EXPECT_EQ(refused.status.param, "guided_regex");
  }
  service->submit(10, regex("known"));
  EXPECT_TRUE(wait(*service, 10).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 3; ++ticket) EXPECT_FALSE(has_come(ticket));
}

TEST_F(FormServiceTest, NobodyWaitsBehindACheck) {
  const Gate gate;
  FormServiceSetup held = patient_setup();
  const auto pulse = held.pulse;
  const auto service = serve(std::move(held));
  service->submit(1, regex("known"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  const Form refused = schema(R"({"not":{}})");
  service->submit(2, refused);
  const Status before = wait(*service, 2).status;
  service->submit(3, regex(gate.regex()));
  gate.wait_for_one();
  service->submit(4, regex("known"));
  EXPECT_TRUE(wait(*service, 4).status.ok());
  service->submit(5, refused);
  EXPECT_EQ(wait(*service, 5).status.message, before.message);
  service->submit(6, regex("new"));
  EXPECT_TRUE(wait(*service, 6).status.ok());
  EXPECT_FALSE(has_come(3));
  for (int i = 0; pulse->beats() != 0 && i < 10'000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(pulse->beats(), 0u) << "there is nothing to look up";
  gate.open();
  EXPECT_TRUE(wait(*service, 3).status.ok());
}

// Two compile at most, and a third process checks: so a new form that is refused waits for no slow ones.
TEST_F(FormServiceTest, ChecksDoNotWaitBehindFormsThatAreCompiled) {
  const auto service = serve(patient_setup());
  for (std::uint64_t ticket = 1; ticket <= 4; ++ticket)
    service->submit(ticket, regex("hang" + std::to_string(ticket)));
  for (std::uint64_t ticket = 5; ticket <= 8; ++ticket) {
    service->submit(ticket, schema(R"({"not":{"title":")" + std::to_string(ticket) + "\"}}"));
    EXPECT_EQ(wait(*service, ticket).status.param, "guided_json.not");
  }
  for (std::uint64_t ticket = 1; ticket <= 4; ++ticket) EXPECT_FALSE(has_come(ticket));
}

TEST_F(FormServiceTest, TheSameFormIsCheckedOnceForAll) {
  const Gate gate;
  const auto service = serve(patient_setup());
  for (std::uint64_t ticket = 1; ticket <= 5; ++ticket) service->submit(ticket, regex(gate.regex()));
  gate.wait_for_one();
  gate.open();
  for (std::uint64_t ticket = 1; ticket <= 5; ++ticket) EXPECT_TRUE(wait(*service, ticket).status.ok());
  EXPECT_EQ(gate.arrivals(), 1u);
}

TEST_F(FormServiceTest, AClientHasABoundOfItsOwn) {
  const Gate gates[3];
  FormServiceSetup held = patient_setup();
  held.most_of_client = 3;
  const auto service = serve(std::move(held));
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket)
    service->submit(ticket, regex(gates[ticket - 1].regex()), "greedy");
  for (const std::uint64_t ticket : {4, 5}) {
    service->submit(ticket, regex("g" + std::to_string(ticket)), "greedy");
    const CompileOutcome refused = wait(*service, ticket);
    EXPECT_EQ(refused.status.code, Code::overloaded);
    EXPECT_EQ(refused.status.reason, "grammar_queue_full");
    EXPECT_EQ(refused.status.message,
              "guided_regex has to be compiled, and 3 of this client's forms are waiting for that: try again "
              "later");
  }
  service->submit(6, regex("other"), "modest");
  for (const Gate& gate : gates) gate.open();
  for (const std::uint64_t ticket : {1, 2, 3, 6}) EXPECT_TRUE(wait(*service, ticket).status.ok()) << ticket;
  service->submit(7, regex("last"), "greedy");
  EXPECT_TRUE(wait(*service, 7).status.ok()) << "those before it count no more";
}

TEST_F(FormServiceTest, AClientWithNothingAtWorkComesFirst) {
  FormServiceSetup held = setup();
  held.process.times = {std::chrono::milliseconds(400), 500};
  held.process.times.standstill = std::chrono::minutes(5);
  const auto service = serve(std::move(held));
  service->submit(1, regex("warm"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 7; ++ticket)
    service->submit(ticket, regex("spin" + std::to_string(ticket)), "greedy");
  service->submit(8, regex("modest"), "modest");
  EXPECT_TRUE(wait(*service, 8).status.ok());
  int greedy = 0;
  for (std::uint64_t ticket = 2; ticket <= 7; ++ticket) greedy += has_come(ticket) ? 1 : 0;
  EXPECT_LE(greedy, 3) << "those that were at work when it came, and one more at most";
}

TEST_F(FormServiceTest, WhatNobodyWaitsForIsForgotten) {
  const Gate gates[3], second;
  FormServiceSetup held = patient_setup();
  held.most_of_client = 4;
  const auto service = serve(std::move(held));
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket)
    service->submit(ticket, regex(gates[ticket - 1].regex()));
  for (const Gate& gate : gates) gate.wait_for_one();  // no process is free
  service->submit(12, regex(second.regex()));
  service->submit(13, regex(second.regex()));
  service->submit(4, regex("third"));
  EXPECT_EQ(wait(*service, 4).status.reason, "grammar_queue_full");
  service->drop(12);
  service->submit(5, regex("third"));
  EXPECT_EQ(wait(*service, 5).status.reason, "grammar_queue_full") << "another waits for it";
  service->drop(13);
  service->submit(6, regex("third"));
  service->drop(1);  // it is being checked
  for (const Gate& gate : gates) gate.open();
  EXPECT_TRUE(wait(*service, 6).status.ok());
  for (const std::uint64_t ticket : {2, 3}) EXPECT_TRUE(wait(*service, ticket).status.ok());
  EXPECT_EQ(second.arrivals(), 0u);
  for (const std::uint64_t ticket : {1, 12, 13}) EXPECT_FALSE(has_come(ticket));
}

TEST_F(FormServiceTest, EndsWhileSomethingCompiles) {
  auto service = serve(patient_setup());
  service->submit(1, regex("hang"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto before = std::chrono::steady_clock::now();
  service.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

TEST_F(FormServiceTest, AFaultInItsThreadsEndsOneFormAlone) {
  const auto service = serve(setup());
  std::uint64_t ticket = 0;
  for (const char* place : {"form look-up", "form check", "form compiler"}) {
    const testing::ThrownFault fault(place);
    service->submit(++ticket, regex(place));
    EXPECT_EQ(wait(*service, ticket).status.code, Code::internal) << place;
    EXPECT_EQ(fault.thrown(), 1);
    service->submit(++ticket, regex(place));
    EXPECT_TRUE(wait(*service, ticket).status.ok()) << "the thread goes on, and the fault was not kept";
    service->submit(++ticket, regex(std::string(place) + "x"));
    EXPECT_TRUE(wait(*service, ticket).status.ok());
  }
}

}  // namespace
}  // namespace troupe
