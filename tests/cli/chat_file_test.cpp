#include "cli/chat_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

class ChatFileTest : public testing::Test {
 protected:
  ChatFileTest() { fs::create_directories(home_); }
  ~ChatFileTest() override { fs::remove_all(home_); }

  std::string path(const char* name) const { return (home_ / name).string(); }
  void write(const std::string& where, const std::string& text) const { std::ofstream(where) << text; }
  std::string read(const std::string& where) const {
    std::ifstream file(where);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const fs::path home_ = fs::temp_directory_path() / ("troupe-chat-file-" + std::to_string(::getpid()));
};

TEST_F(ChatFileTest, WhatIsSavedIsLoaded) {
  const ChatFile chat{"m", {{"system", "Be \"brief\"."}, {"user", "a\nb"}, {"assistant", "ü"}}};
  ASSERT_TRUE(save_chat(path("a"), chat).ok());
  ASSERT_TRUE(save_chat(path("a"), chat).ok()) << "an older chat is replaced";
  const auto loaded = load_chat(path("a"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  EXPECT_EQ(loaded->model, "m");
  EXPECT_EQ(loaded->messages, chat.messages);
  EXPECT_FALSE(fs::exists(path("a.part")));
}

TEST_F(ChatFileTest, AFileThatIsNoChatIsToldAndKept) {
  for (const char* text :
       {"", "# notes", "[]", "{}", R"({"messages": 1})", R"({"messages": [{"role": "user"}]})",
        R"({"messages": [{"role": "tool", "content": "a"}]})",
        R"({"messages": [{"role": "user", "content": 1}]})", R"({"messages": ["a"]})"}) {
    write(path("b"), text);
    const auto loaded = load_chat(path("b"));
    EXPECT_EQ(loaded.status().code, Code::invalid_argument) << text;
    EXPECT_NE(loaded.status().message.find("is not a saved chat"), std::string::npos) << text;
    EXPECT_EQ(save_chat(path("b"), {}).code, Code::invalid_argument) << text;
    EXPECT_EQ(read(path("b")), text);
  }
  EXPECT_EQ(load_chat(path("")).status().code, Code::invalid_argument) << "a folder";
  EXPECT_EQ(load_chat(path("none")).status().code, Code::not_found);
  EXPECT_FALSE(save_chat(path("none/c"), {}).ok());
}

}  // namespace
}  // namespace troupe::cli
