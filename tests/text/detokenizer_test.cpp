#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "text/fixtures.h"

namespace troupe {
namespace {

std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
  return *Tokenizer::load(test::data_path(name));
}

// The token of one byte, in either kind of tokenizer.
TokenId byte_token(const Tokenizer& tokenizer, unsigned char byte) {
  return *tokenizer.token_id(std::string(1, static_cast<char>(byte)));
}

TEST(Detokenizer, HoldsBackUnfinishedCharacters) {
  for (const char* kind : {"byte_level", "sentencepiece"}) {
    const auto t = tokenizer(kind);
    Detokenizer d(t);
    const std::string smile = "😀";
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(d.append(byte_token(*t, static_cast<unsigned char>(smile[static_cast<std::size_t>(i)]))), "")
          << kind;
    }
    Detokenizer copy = d;
    EXPECT_EQ(d.append(byte_token(*t, static_cast<unsigned char>(smile[3]))), smile) << kind;
    EXPECT_EQ(d.flush(), "");
    EXPECT_EQ(copy.flush(), "\uFFFD");  // does not change the original
    EXPECT_EQ(copy.flush(), "");
  }
}

TEST(Detokenizer, InvalidBytesBecomeReplacementsAtOnce) {
  const auto t = tokenizer("byte_level");
  Detokenizer d(t);
  EXPECT_EQ(d.append(byte_token(*t, 0xFF)), "\uFFFD");
  EXPECT_EQ(d.append(byte_token(*t, 0xE4)), "");
  EXPECT_EQ(d.append(byte_token(*t, 'a')), "\uFFFDa");
  EXPECT_EQ(d.append(byte_token(*t, 0xE0)), "");
  EXPECT_EQ(d.append(byte_token(*t, 0x80)), "\uFFFD\uFFFD");  // an overlong form is never a character
}

TEST(Detokenizer, RandomTokensAlwaysGiveValidUtf8) {
  for (const char* kind : {"byte_level", "sentencepiece", "llama_style"}) {
    const auto t = tokenizer(kind);
    std::mt19937 random(3);
    Detokenizer d(t, false);
    std::string out, bytes;
    for (int i = 0; i < 20'000; ++i) {
      // Byte tokens are frequent, so that every kind of broken character occurs.
      const TokenId id = random() % 2
                             ? static_cast<TokenId>(random() % static_cast<unsigned>(t->vocab_size()))
                             : byte_token(*t, static_cast<unsigned char>(random()));
      const std::string piece = d.append(id);
      ASSERT_TRUE(utf8::is_valid(piece));
      ASSERT_LE(d.pending().size(), 3u);
      out += piece;
      bytes += t->token_bytes(id);
    }
    EXPECT_EQ(out + d.flush(), utf8::to_valid(bytes)) << kind;
  }
}

TEST(Detokenizer, KeepsLeadingBlanksAndSkipsSpecialTokens) {
  const auto t = tokenizer("sentencepiece");
  const auto ids = t->encode("<s> Hello</s> you<think>", SpecialTokens::parse);
  Detokenizer skipping(t), showing(t, false);
  std::string without, with;
  for (TokenId id : ids) {
    without += skipping.append(id);
    with += showing.append(id);
  }
  EXPECT_EQ(without, " Hello you<think>");
  EXPECT_EQ(with, "<s> Hello</s> you<think>");
  EXPECT_EQ(showing.append(-1), "");
  EXPECT_EQ(showing.append(1 << 30), "");
}

TEST(Utf8, ReplacesAsPythonDoes) {
  // Expected texts are Python's bytes.decode("utf-8", "replace").
  const std::pair<std::string, std::string> cases[] = {
      {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82z", "\uFFFDz"},
      {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x9F\x98z", "\uFFFDz"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"a\x80\xFE", "a\uFFFD\uFFFD"},
      {"\xF0\x9F\x98\x80", "😀"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(utf8::to_valid(bytes), text);
}

}  // namespace
}  // namespace troupe
