// Which tokens end an answer, by the three files that name some.
#include <gtest/gtest.h>

#include "model/checkpoint/generation_config.h"

namespace troupe::model {
namespace {

TEST(EndIds, AreThoseOfAllFiles) {
  GenerationConfig generation;
  ModelSpec spec;
  spec.vocab = 100;
  EXPECT_TRUE(end_ids(generation, spec, std::nullopt).empty());
  EXPECT_EQ(end_ids(generation, spec, 7), std::vector<TokenId>{7});
  spec.eos_ids = {2, 7};
  EXPECT_EQ(end_ids(generation, spec, 7), (std::vector<TokenId>{2, 7}));
  generation.eos_ids = {5, 2};
  EXPECT_EQ(end_ids(generation, spec, 7), (std::vector<TokenId>{5, 2, 7}));
  EXPECT_EQ(end_ids(generation, spec, 2), (std::vector<TokenId>{5, 2, 7}));
  EXPECT_EQ(end_ids(generation, {.vocab = 6}, 99), (std::vector<TokenId>{5, 2}))
      << "the tokenizer may know more than the model";
}

}  // namespace
}  // namespace troupe::model
