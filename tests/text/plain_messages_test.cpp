// Messages in the form that every chat template can read.
#include "text/template/plain_messages.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

std::string plain(const std::string& messages, const char* source) {
  const auto chat = ChatTemplate::compile(source);
  EXPECT_TRUE(chat.ok()) << chat.status().message;
  Json given = Json::parse(messages);
  PlainMessages(chat->get()).apply(given);
  return given.dump();
}

constexpr const char* kAny = "{{ messages }}";

TEST(PlainMessages, ContentIsAString) {
  EXPECT_EQ(plain(R"([{"role":"assistant","content":null}])", kAny),
            R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(plain(R"([{"role":"assistant"}])", kAny), R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(
      plain(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])", kAny),
      R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(plain(R"([{"role":"user","content":[]}])", kAny), R"([{"role":"user","content":""}])");
  EXPECT_EQ(plain(R"([{"role":"tool","content":{"t":17,"u":"°C"}}])", kAny),
            R"([{"role":"tool","content":"{\"t\":17,\"u\":\"°C\"}"}])");
  EXPECT_EQ(plain(R"([{"role":"assistant","content":null,"refusal":"no"}])", kAny),
            R"([{"role":"assistant","content":"no","refusal":"no"}])");
}

TEST(PlainMessages, WhatIsNullIsNotThere) {
  EXPECT_EQ(
      plain(R"([{"role":"assistant","content":"x","tool_calls":null,"name":null,"reasoning_content":null}])",
            kAny),
      R"([{"role":"assistant","content":"x"}])");
  EXPECT_EQ(plain(R"([{"role":"assistant","content":"x","tool_calls":[]}])", kAny),
            R"([{"role":"assistant","content":"x"}])");
  EXPECT_EQ(plain(R"([{"role":"assistant","content":"","reasoning":"why"}])", kAny),
            R"([{"role":"assistant","content":"","reasoning":"why","reasoning_content":"why"}])");
}

TEST(PlainMessages, ArgumentsAreAnObjectOrATextThatTheTemplateTakes) {
  const auto call = [](const std::string& arguments) {
    return R"([{"role":"assistant","content":"","tool_calls":[{"id":null,"function":{"name":"f")" +
           arguments + "}}]}]";
  };
  const auto done = [](const std::string& arguments) {
    return R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":)" +
           arguments + "}}]}]";
  };
  const char* const lists =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() "
      "%}{{ k }}"
      "{% endfor %}{% endfor %}{% endfor %}";
  const char* const prints =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor "
      "%}{% endfor %}";
  for (const char* source : {lists, prints, kAny}) {
    EXPECT_EQ(plain(call(""), source), done("{}"));
    EXPECT_EQ(plain(call(R"(,"arguments":null)"), source), done("{}"));
    EXPECT_EQ(plain(call(R"(,"arguments":{"a":1})"), source), done(R"({"a":1})"));
  }
  EXPECT_EQ(plain(call(R"(,"arguments":"{\"a\": 1")"), prints), done(R"("{\"a\": 1")"));
  EXPECT_EQ(plain(call(R"(,"arguments":"{\"a\": 1")"), lists), done("{}")) << "it iterates over an object";
}

TEST(PlainMessages, SystemMessagesAreWhereTheTemplateTakesThem) {
  const std::string given =
      R"([{"role":"system","content":"a"},{"role":"system","content":[{"type":"text","text":"b"}]},{"role":"user","content":"q"},)"
      R"({"role":"system","content":"later"}])";
  const char* const first_only =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% "
      "endif %}"
      "{{ m.content }}{% endfor %}";
  EXPECT_EQ(
      plain(given, first_only),
      R"([{"role":"system","content":"a\nb"},{"role":"user","content":"q"},{"role":"user","content":"later"}])");
  const char* const drops =
      "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor "
      "%}";
  EXPECT_EQ(plain(given, drops), plain(given, first_only)) << "what it does not show is as good as refused";
  const char* const all = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(
      plain(given, all),
      R"([{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"q"},)"
      R"({"role":"system","content":"later"}])");
}

}  // namespace
}  // namespace troupe
