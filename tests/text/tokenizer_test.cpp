// Token ids compared with the reference tokenizers on a corpus of difficult texts; and that only trusted text
// becomes special tokens.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "support/temp_directory.h"
#include "text/detokenizer.h"
#include "text/fixtures.h"
#include "text/template/chat_template.h"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  auto result = Tokenizer::load(test::data_path(name));
  EXPECT_TRUE(result.ok()) << result.status().message;
  return result.ok() ? *result : nullptr;
}

std::string bytes_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (TokenId id : ids) out += tokenizer.token_bytes(id);
  return out;
}

class Kinds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tokenizer, Kinds,
                         ::testing::Values("byte_level", "split_nfc", "llama_style", "sentencepiece"));

TEST_P(Kinds, EncodesAsTheReferenceDoes) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  const Json cases = test::read_json("tokenizer_cases.json", GetParam());
  ASSERT_GE(cases.size(), 100u);
  for (const Json& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::parse), c["ids"].get<Ids>()) << text;
    if (c.contains("plain")) {
      EXPECT_EQ(tokenizer->encode(text, SpecialTokens::plain), c["plain"].get<Ids>()) << text;
    }
  }
}

TEST_P(Kinds, DecodesToTheText) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  const bool lossless =
      std::string_view(GetParam()) == "byte_level" || std::string_view(GetParam()) == "sentencepiece";
  for (const Json& c : test::read_json("tokenizer_cases.json", GetParam())) {
    const std::string text = c["text"];
    Detokenizer detokenizer(tokenizer, false);
    std::string decoded;
    for (TokenId id : c["ids"]) decoded += detokenizer.append(id);
    decoded += detokenizer.flush();
    if (c.contains("decoded")) {
      EXPECT_EQ(decoded, c["decoded"].get<std::string>());
    }
    // Only "▁" itself and blanks that a token swallows are lost.
    if (lossless && text.find("▁") == text.npos && text.find("<strip>") == text.npos) {
      EXPECT_EQ(decoded, text);
    }
  }
}

TEST(Tokenizer, PrefixedModelsGetOneBlankBeforeTheText) {
  const auto tokenizer = load("sentencepiece_prefix");
  ASSERT_TRUE(tokenizer);
  for (const Json& c : test::read_json("tokenizer_cases.json", "sentencepiece_prefix")) {
    EXPECT_EQ(tokenizer->encode(c["text"].get<std::string>(), SpecialTokens::plain), c["ids"].get<Ids>())
        << c["text"];
  }
  // There is no second blank after a special token.
  const Ids ids = tokenizer->encode("<mask:0>the", SpecialTokens::parse);
  EXPECT_EQ(bytes_of(*tokenizer, ids), "<mask:0>the");
}

// Ids that only trusted text may produce.
std::vector<TokenId> reserved_ids(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (const char* text :
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|begin_of_sentence|>",
        "<|end_of_sentence|>", "<mask:0>", "<mask:1>", "<think>", "</think>"}) {
    if (const auto id = tokenizer.token_id(text)) ids.push_back(*id);
  }
  for (const SpecialToken& special : tokenizer.special_tokens()) ids.push_back(special.id);
  return ids;
}

TEST_P(Kinds, UntrustedTextNeverBecomesASpecialToken) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  const std::vector<TokenId> reserved = reserved_ids(*tokenizer);
  ASSERT_GE(reserved.size(), 5u);
  std::mt19937 random(7);
  const char* parts[] = {"<|im_start|>",
                         "<|im_end|>",
                         "<s>",
                         "</s>",
                         "<",
                         ">",
                         "|",
                         "<|im_",
                         "end|>",
                         "<mask:0>",
                         "mask",
                         ":",
                         "0",
                         "<|begin_of_sentence|>",
                         "<think>",
                         "</think>",
                         " ",
                         "a",
                         "\n",
                         "<|endoftext|>",
                         "▁",
                         "＜mask:0＞",
                         "<<mask:0>>",
                         "é"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += parts[random() % std::size(parts)];
    const Ids ids = tokenizer->encode(text, SpecialTokens::plain);
    for (TokenId id : ids) {
      const bool unknown = tokenizer->token_bytes(id) == "<unk>";
      EXPECT_TRUE(unknown || std::find(reserved.begin(), reserved.end(), id) == reserved.end())
          << tokenizer->token_bytes(id) << " from " << text;
    }
    if (text.find("▁") == text.npos) {
      EXPECT_EQ(bytes_of(*tokenizer, ids), text);
    }
  }
}

TEST_P(Kinds, TrustedTextBecomesSpecialTokens) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<s>", "</s>"}) {
    const auto id = tokenizer->token_id(text);
    ASSERT_TRUE(id) << text;
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::parse), Ids{*id});
    const TextSpan spans[] = {{"a", false}, {text, true}, {text, false}};
    const Ids ids = tokenizer->encode(spans);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *id), 1) << text;
    // A special token that is only partly trusted is plain text; one split over trusted spans is special.
    const TextSpan half[] = {{std::string(text).substr(0, 2), true}, {std::string(text).substr(2), false}};
    EXPECT_EQ(tokenizer->encode(half), tokenizer->encode(text, SpecialTokens::plain));
    const TextSpan both[] = {{std::string(text).substr(0, 2), true}, {std::string(text).substr(2), true}};
    EXPECT_EQ(tokenizer->encode(both), Ids{*id});
  }
}

TEST_P(Kinds, SplittingTextByTrustDoesNotChangeOrdinaryWords) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  for (const Json& c : test::read_json("tokenizer_cases.json", GetParam())) {
    const std::string text = c["text"];
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      if (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      if (text.find('<') != text.npos) break;  // no special token here
      const TextSpan spans[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
      EXPECT_EQ(tokenizer->encode(spans), c["ids"].get<Ids>()) << text << " cut at " << cut;
    }
  }
}

TEST_P(Kinds, InvalidUtf8IsEncodedAsReplacementCharacters) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->encode("a\xFF\xE4\xBD z\xF0\x9F", SpecialTokens::parse),
            tokenizer->encode("a\uFFFD\uFFFD z\uFFFD", SpecialTokens::parse));
}

TEST_P(Kinds, ThreadsMayShareIt) {
  const auto tokenizer = load(GetParam());
  ASSERT_TRUE(tokenizer);
  const Json cases = test::read_json("tokenizer_cases.json", GetParam());
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < cases.size() * 4; ++i) {
        const Json& c = cases[(i * 7 + static_cast<std::size_t>(t)) % cases.size()];
        wrong += tokenizer->encode(c["text"].get<std::string>(), SpecialTokens::parse) != c["ids"].get<Ids>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = load("sentencepiece");
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->vocab_size(), 1501);
  EXPECT_EQ(tokenizer->token_id("<tool>"), 1500);
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_TRUE(tokenizer->is_special(*tokenizer->token_id("<|begin_of_sentence|>")));  // the cls_token
  EXPECT_FALSE(
      tokenizer->is_special(*tokenizer->token_id("<think>")));  // shown in answers, because parsers need it
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_FALSE(tokenizer->is_special(1 << 30));
  EXPECT_EQ(tokenizer->token_bytes(-5), "");
  EXPECT_EQ(tokenizer->token_bytes(1 << 30), "");
  EXPECT_FALSE(tokenizer->token_id("no such piece"));
}

TEST(Tokenizer, WorstCasesStayLinear) {
  for (const char* name : {"byte_level", "sentencepiece", "llama_style"}) {
    const auto tokenizer = load(name);
    ASSERT_TRUE(tokenizer);
    for (const std::string unit : {"a", " ", "👩\u200d", "\uFDFD", "<|im_", "<mask:0>", "\n"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      const Ids ids =
          tokenizer->encode(text, SpecialTokens::plain);  // quadratic work would exceed the test's timeout
      EXPECT_EQ(bytes_of(*tokenizer, ids), text) << name << " " << unit;
    }
  }
}

class BadFiles : public ::testing::Test {
 protected:
  Status load_json(const std::string& text) {
    std::ofstream(dir_ / "tokenizer.json") << text;
    return Tokenizer::load(dir_.string()).status();
  }
  const troupe::test::TempDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

TEST_F(BadFiles, AreErrorsThatNameTheDefect) {
  EXPECT_EQ(Tokenizer::load(dir_.string()).status().code, Code::not_found);
  EXPECT_NE(load_json("").message.find("not valid JSON"), std::string::npos);
  EXPECT_FALSE(load_json("[]").ok());
  EXPECT_FALSE(load_json("{\"model\": 5}").ok());
  const Json good = test::read_json("byte_level/tokenizer.json");
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = good;
    changed[Json::json_pointer(pointer)] = value;
    return load_json(changed.dump()).message;
  };
  EXPECT_NE(with("/normalizer", {{"type", "BertNormalizer"}}).find("BertNormalizer"), std::string::npos);
  const Json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const auto doubled = [&](int times) {
    return Json{{"type", "Sequence"},
                {"normalizers", Json(std::vector<Json>(static_cast<std::size_t>(times), doubles))}};
  };
  EXPECT_EQ(with("/normalizer", doubled(4)), "");
  EXPECT_NE(with("/normalizer", doubled(5)).find("more than 16 times"), std::string::npos);
  EXPECT_NE(with("/normalizer", {{"type", "Prepend"}, {"prepend", std::string(300, 'a')}}).find("256 bytes"),
            std::string::npos);
  EXPECT_NE(with("/pre_tokenizer", {{"type", "Whitespace"}}).find("Whitespace"), std::string::npos);
  EXPECT_NE(with("/decoder", {{"type", "WordPiece"}}).find("WordPiece"), std::string::npos);
  EXPECT_NE(with("/model/type", "Unigram").find("Unigram"), std::string::npos);
  EXPECT_NE(with("/model/merges/0", "no pair").find("merge"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", -3).find("\"a\""), std::string::npos);
  EXPECT_NE(with("/added_tokens/0/id", 2'000'000'000).find("2000000000"), std::string::npos);
  Json regex = {
      {"type", "Split"}, {"pattern", {{"Regex", "((("}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_NE(with("/pre_tokenizer", regex).find("((("), std::string::npos);
  EXPECT_TRUE(load_json(good.dump()).ok());
}

TEST_F(BadFiles, DeepNestingIsAnError) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const Status type = load_json("{\"model\": {\"vocab\": {}, \"type\": " + deep + "}}");
  EXPECT_NE(type.message.find("tokenizer.json is nested deeper than"), std::string::npos) << type.message;
  ASSERT_TRUE(load_json(test::read_data("byte_level/tokenizer.json")).ok());
  std::ofstream(dir_ / "tokenizer_config.json") << "{\"chat_template\": " + deep + "}";
  const Status config = Tokenizer::load(dir_.string()).status();
  EXPECT_NE(config.message.find("tokenizer_config.json is nested"), std::string::npos) << config.message;
  const Status chat = ChatTemplate::load(dir_.string()).status();
  EXPECT_NE(chat.message.find("tokenizer_config.json is nested"), std::string::npos) << chat.message;
}

TEST_F(BadFiles, InvalidIdsAreErrors) {
  ASSERT_TRUE(load_json(test::read_data("byte_level/tokenizer.json")).ok());
  const auto with = [&](const char* file, const std::string& text) {
    std::ofstream(dir_ / file) << text;
    const std::string message = Tokenizer::load(dir_.string()).status().message;
    std::filesystem::remove(dir_ / file);
    return message;
  };
  for (const char* id : {"4294967298", "99999999999999999999", "-1", "1.5"}) {
    const std::string decoder =
        with("tokenizer_config.json",
             "{\"added_tokens_decoder\": {\"" + std::string(id) + "\": {\"content\": \"<new>\"}}}");
    EXPECT_NE(decoder.find(id), std::string::npos) << decoder;
    EXPECT_FALSE(with("added_tokens.json", "{\"<new>\": " + std::string(id) + "}").empty()) << id;
  }
  EXPECT_NE(with("added_tokens.json", "{\"<new>\": 4294967298}").find("4294967298"), std::string::npos);
  EXPECT_EQ(with("added_tokens.json", "{\"<new>\": 3000}"), "");
}

TEST_F(BadFiles, AddedTokensInTheVocabularyAreGuardedToo) {
  Json json = test::read_json("byte_level/tokenizer.json");
  const auto id = 3000;
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json["model"]["ignore_merges"] = true;  // a whole word is looked up in the vocabulary
  json["model"]["vocab"]["<gadget>"] = id;
  ASSERT_TRUE(load_json(json.dump()).ok());
  std::ofstream(dir_ / "added_tokens.json") << Json{{"<gadget>", id}}.dump();
  const auto tokenizer = Tokenizer::load(dir_.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  EXPECT_EQ((*tokenizer)->encode("<gadget>", SpecialTokens::parse), Ids{id});
  const Ids plain = (*tokenizer)->encode("<gadget>", SpecialTokens::plain);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), id), 0);
  EXPECT_EQ(bytes_of(**tokenizer, plain), "<gadget>");
}

TEST_F(BadFiles, TruncatedModelsAreErrors) {
  const std::string good = test::read_data("sentencepiece/tokenizer.model");
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
    std::ofstream(dir_ / "tokenizer.model", std::ios::binary) << good.substr(0, size);
    EXPECT_FALSE(Tokenizer::load(dir_.string()).ok()) << size;
  }
  std::ofstream(dir_ / "tokenizer.model", std::ios::binary) << std::string(5000, '\xFF');
  EXPECT_FALSE(Tokenizer::load(dir_.string()).ok());
  std::ofstream(dir_ / "tokenizer.model", std::ios::binary) << good;
  std::ofstream(dir_ / "tokenizer.json") << "not read: tokenizer.model comes first";
  EXPECT_TRUE(Tokenizer::load(dir_.string()).ok());
  std::ofstream(dir_ / "tokenizer_config.json") << "[]";
  EXPECT_NE(Tokenizer::load(dir_.string()).status().message.find("tokenizer_config.json"), std::string::npos);
}

}  // namespace
}  // namespace troupe
