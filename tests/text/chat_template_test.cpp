// Rendered chats, compared byte for byte with transformers' apply_chat_template.
#include "text/template/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "text/fixtures.h"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;
using test::joined;

std::shared_ptr<const ChatTemplate> compiled(const std::string& source,
                                             const Json& special_tokens = Json::object()) {
  auto result = ChatTemplate::compile(source, special_tokens);
  EXPECT_TRUE(result.ok()) << result.status().message << "\n" << source;
  return result.ok() ? *result : nullptr;
}

TEST(ChatTemplate, RendersConversationsAsTransformersDoes) {
  const Json fixture = test::read_json("chat_cases.json");
  std::map<std::string, std::shared_ptr<const ChatTemplate>> templates;
  int count = 0;
  for (const Json& c : fixture["cases"]) {
    const std::string name = c["template"];
    auto& chat = templates[name];
    if (!chat) chat = compiled(test::read_data("templates/" + name + ".jinja"), fixture["special_tokens"]);
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->missing(), std::vector<std::string>{}) << name;
    const auto spans = chat->render(c["messages"], c["tools"], c["kwargs"], c["add_generation_prompt"]);
    const std::string label = name + " " + c["name"].get<std::string>();
    if (c.contains("expected")) {
      ASSERT_TRUE(spans.ok()) << label << ": " << spans.status().message;
      EXPECT_EQ(joined(*spans), c["expected"].get<std::string>()) << label;
    } else {
      EXPECT_FALSE(spans.ok()) << label;
      if (c["error"] == "TemplateError") {
        EXPECT_EQ(spans.status().message, c["message"].get<std::string>());
      }
    }
    ++count;
  }
  EXPECT_GE(count, 60);
}

TEST(ChatTemplate, EveryFeatureBehavesAsInJinja) {
  const Json fixture = test::read_json("jinja_features.json");
  Json kwargs = fixture["context"];
  const Json messages = kwargs["messages"];
  kwargs.erase("messages");
  for (const Json& c : fixture["cases"]) {
    const std::string source = c["template"];
    const auto chat = ChatTemplate::compile(source);
    ASSERT_TRUE(chat.ok()) << chat.status().message << "\n" << source;
    const auto spans = (*chat)->render(messages, nullptr, kwargs, true);
    if (c.contains("expected")) {
      EXPECT_TRUE(spans.ok()) << spans.status().message << "\n" << source;
      EXPECT_EQ((*chat)->missing(), std::vector<std::string>{}) << source;
      if (spans.ok()) {
        EXPECT_EQ(joined(*spans), c["expected"].get<std::string>()) << source;
      }
    } else {
      EXPECT_FALSE(spans.ok()) << source << " should fail with " << c["message"];
      EXPECT_EQ(spans.status().code, Code::invalid_argument);
    }
  }
}

TEST(ChatTemplate, SyntaxErrorsNameTheLine) {
  for (const Json& source : test::read_json("jinja_features.json", "syntax_errors")) {
    const auto chat = ChatTemplate::compile(source.get<std::string>());
    ASSERT_FALSE(chat.ok()) << source;
    EXPECT_NE(chat.status().message.find("line "), std::string::npos) << chat.status().message;
  }
  const auto chat = ChatTemplate::compile("line one\n{# two #}\n{% if x %}\n{{ oops oops }}\n{% endif %}");
  EXPECT_NE(chat.status().message.find("line 4"), std::string::npos) << chat.status().message;
  const auto runtime = compiled("\n\n{{ messages.x.y }}")->render(Json::array(), nullptr, nullptr, true);
  EXPECT_NE(runtime.status().message.find("line 3"), std::string::npos) << runtime.status().message;
}

}  // namespace
}  // namespace troupe
