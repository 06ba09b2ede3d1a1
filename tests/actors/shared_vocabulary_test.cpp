#include "actors/engine/shared_vocabulary.h"

#include <gtest/gtest.h>

#include "ipc/memory_file.h"
#include "support/byte_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {
namespace {

TEST(SharedVocabulary, SaysWhatTheTokenizerSays) {
  const testing::ByteTokenizer tokenizer({"<think>"});
  auto file = ipc::make_constant_file("troupe-vocabulary", VocabularyImage::bytes_of(tokenizer));
  ASSERT_TRUE(file.ok());
  const auto shared = map_vocabulary(file->get());
  ASSERT_TRUE(shared.ok()) << shared.status().message;
  file->reset();
  EXPECT_EQ((*shared)->token_id("<think>"), tokenizer.token_id("<think>"));
  EXPECT_EQ((*shared)->token_bytes(65), "A");
  EXPECT_EQ((*shared)->eos_id(), tokenizer.eos_id());
}

TEST(SharedVocabulary, OneThatCannotBeUsedIsAnError) {
  EXPECT_EQ(map_vocabulary(-1).status().code, Code::not_found);
  const std::string whole = VocabularyImage::bytes_of(testing::ByteTokenizer());
  const auto cut = ipc::make_constant_file("troupe-vocabulary", whole.substr(1));
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(map_vocabulary(cut->get()).status().code, Code::invalid_argument);
  const auto writable = ipc::make_memory_file("troupe-vocabulary", whole.size());
  ASSERT_TRUE(writable.ok());
  EXPECT_EQ(map_vocabulary(writable->get()).status().code, Code::invalid_argument)
      << "it could change under its readers";
}

TEST(SharedVocabulary, TextsAreReadFromTheTokenizersFilesWhereNoneIsShared) {
  const config::ModelOptions model{.directory = TROUPE_TEST_DATA "/text/byte_level"};
  const auto own = read_texts(model, -1, Log());
  ASSERT_TRUE(own.ok()) << own.status().message;
  EXPECT_EQ((*own)->eos_id(), (*Tokenizer::load(model.directory))->eos_id());
  const testing::ByteTokenizer tokenizer({"<think>"});
  const auto file = ipc::make_constant_file("troupe-vocabulary", VocabularyImage::bytes_of(tokenizer));
  ASSERT_TRUE(file.ok());
  const auto shared = read_texts({.directory = "/nowhere"}, file->get(), Log());
  ASSERT_TRUE(shared.ok()) << shared.status().message;
  EXPECT_EQ((*shared)->token_id("<think>"), tokenizer.token_id("<think>"));
  EXPECT_EQ(read_texts({.directory = "/nowhere"}, -1, Log()).status().code, Code::not_found);
}

// The front decodes with it, and needs the tokens of --thinking-end-text, which the tokenizer alone can tell.
TEST(SharedVocabulary, WhatTheTokenizerAloneCanTellIsFoundWithTheTexts) {
  const config::ModelOptions model{.directory = TROUPE_TEST_DATA "/text/byte_level"};
  config::AnswerOptions answers{.reasoning_parser = "ernie-45-vl", .thinking_end_text = "ok</think>"};
  const auto texts = read_texts(model, -1, Log(), &answers);
  ASSERT_TRUE(texts.ok()) << texts.status().message;
  EXPECT_FALSE(answers.found_thinking_end.empty());
}

}  // namespace
}  // namespace troupe
