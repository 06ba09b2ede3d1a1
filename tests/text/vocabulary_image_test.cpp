#include "text/tokenizer/vocabulary_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/byte_tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace troupe {
namespace {

using testing::ByteTokenizer;

/// Texts by id, of which some are special.
class Texts : public TokenTexts {
 public:
  Texts(std::vector<std::string> texts, std::vector<TokenId> specials)
      : texts_(std::move(texts)), specials_(std::move(specials)) {}
  int vocab_size() const override { return static_cast<int>(texts_.size()); }
  std::string_view token_bytes(TokenId id) const override { return texts_[static_cast<std::size_t>(id)]; }
  bool is_special(TokenId id) const override {
    return std::find(specials_.begin(), specials_.end(), id) != specials_.end();
  }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return 3; }
  std::optional<TokenId> pad_id() const override { return 0; }

 private:
  std::vector<std::string> texts_;
  std::vector<TokenId> specials_;
};

Result<std::shared_ptr<const VocabularyImage>> view(const std::string& bytes) {
  return VocabularyImage::view(std::as_bytes(std::span(bytes)), nullptr);
}

/// An encoder that knows no word: what it is about is the vocabulary.
class Silent : public VocabularyTokenizer {
 public:
  using VocabularyTokenizer::VocabularyTokenizer;

 private:
  void encode_ordinary(std::string_view, bool, std::vector<TokenId>&) const override {}
};

Vocabulary small_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.set(0, "a");
  vocabulary.set(2, "<s>");
  vocabulary.added.push_back({.id = 2, .text = "<s>", .special = true});
  vocabulary.eos = 2;
  return vocabulary;
}

TEST(VocabularyImage, SaysWhatTheTextsSay) {
  const ByteTokenizer tokenizer({"<think>", "</think>"});
  const std::string bytes = VocabularyImage::bytes_of(tokenizer);
  const auto image = view(bytes);
  ASSERT_TRUE(image.ok()) << image.status().message;
  ASSERT_EQ((*image)->vocab_size(), tokenizer.vocab_size());
  for (TokenId id = -1; id <= tokenizer.vocab_size(); ++id) {
    EXPECT_EQ((*image)->token_bytes(id), tokenizer.token_bytes(id)) << id;
    EXPECT_EQ((*image)->is_special(id), tokenizer.is_special(id)) << id;
    if (const auto text = tokenizer.token_bytes(id); !text.empty()) {
      EXPECT_EQ((*image)->token_id(text), tokenizer.token_id(text)) << id;
    }
  }
  EXPECT_EQ((*image)->token_id("<thin"), std::nullopt);
  EXPECT_EQ((*image)->token_id(""), std::nullopt);
  EXPECT_EQ((*image)->bos_id(), tokenizer.bos_id());
  EXPECT_EQ((*image)->eos_id(), tokenizer.eos_id());
  EXPECT_EQ((*image)->pad_id(), tokenizer.pad_id());
}

TEST(VocabularyImage, OfTokensWithOneTextTheSpecialOneIsFoundElseTheFirst) {
  const Texts texts({"b", "a", "b", "", "a"}, {4});
  const auto image = VocabularyImage::copy_of(texts);
  EXPECT_EQ(image->token_id("a"), 4);
  EXPECT_EQ(image->token_id("b"), 0);
  EXPECT_EQ(image->eos_id(), 3);
  EXPECT_EQ(image->pad_id(), 0);
  EXPECT_EQ(image->bos_id(), std::nullopt);
}

TEST(VocabularyImage, OfNoTokens) {
  const auto image = VocabularyImage::copy_of(Texts({}, {}));
  EXPECT_EQ(image->vocab_size(), 0);
  EXPECT_EQ(image->token_id("a"), std::nullopt);
  EXPECT_EQ(image->token_bytes(0), "");
}

TEST(VocabularyImage, KeepsItsOwner) {
  auto owner = std::make_shared<const std::string>(VocabularyImage::bytes_of(Texts({"a"}, {})));
  const std::weak_ptr<const std::string> watched = owner;
  auto image = *VocabularyImage::view(std::as_bytes(std::span(*owner)), owner);
  owner.reset();
  EXPECT_EQ(image->token_bytes(0), "a");
  image.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(VocabularyImage, BytesOfAnotherKindAreRefused) {
  const std::string whole = VocabularyImage::bytes_of(Texts({"a", "bc"}, {}));
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string part = whole.substr(0, cut);
    EXPECT_EQ(view(part).status().code, Code::invalid_argument) << cut;
  }
  EXPECT_FALSE(view(whole + "x").ok());
  std::string other = whole;
  other[0] ^= 1;
  EXPECT_NE(view(other).status().message.find("first word"), std::string::npos);
  const std::string shifted = "x" + whole;
  EXPECT_FALSE(VocabularyImage::view(std::as_bytes(std::span(shifted)).subspan(1), nullptr).ok())
      << "not aligned";
}

// Every number is read as the file has it; each call stays within the bytes all the same, which a build with
// --address-sanitizer sees, and every text is a part of them.
TEST(VocabularyImage, DamageBehindTheHeaderReadsNothingOutside) {
  const std::string whole = VocabularyImage::bytes_of(ByteTokenizer({"<think>"}));
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto damaged = std::make_shared<std::string>(whole);
    for (int i = 0; i < 40; ++i)
      (*damaged)[32 + random() % (damaged->size() - 32)] = static_cast<char>(random());
    const auto image = VocabularyImage::view(std::as_bytes(std::span(*damaged)), damaged);
    ASSERT_TRUE(image.ok());
    for (TokenId id = -1; id <= (*image)->vocab_size(); ++id) {
      const std::string_view text = (*image)->token_bytes(id);
      ASSERT_LE(text.size(), damaged->size());
      if (!text.empty()) {
        ASSERT_GE(text.data(), damaged->data());
        ASSERT_LE(text.data() + text.size(), damaged->data() + damaged->size());
      }
      (void)(*image)->is_special(id);
    }
    for (const char* piece : {"a", "<think>", "zz"}) {
      const auto found = (*image)->token_id(piece);
      EXPECT_TRUE(!found || (*image)->token_bytes(*found) == piece);
    }
  }
}

TEST(VocabularyTokenizer, KeepsNoCopyOfTextsThatAreShared) {
  const auto shared = VocabularyImage::copy_of(Silent(small_vocabulary()));
  const Silent tokenizer(small_vocabulary(), shared);
  EXPECT_EQ(tokenizer.token_bytes(0).data(), shared->token_bytes(0).data());
  EXPECT_EQ(tokenizer.token_bytes(2), "<s>");
  EXPECT_EQ(tokenizer.eos_id(), 2);
  ASSERT_EQ(tokenizer.special_tokens().size(), 1u);
}

TEST(VocabularyTokenizer, TakesNoOtherTextsThanItsOwn) {
  Vocabulary other = small_vocabulary();
  other.set(0, "b");
  const auto shared = VocabularyImage::copy_of(Silent(other));
  const Silent tokenizer(small_vocabulary(), shared);
  EXPECT_EQ(tokenizer.token_bytes(0), "a");
  Vocabulary without_end = small_vocabulary();
  without_end.eos.reset();
  EXPECT_EQ(Silent(without_end, VocabularyImage::copy_of(tokenizer)).eos_id(), std::nullopt);
}

}  // namespace
}  // namespace troupe
