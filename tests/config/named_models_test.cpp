// --model NAME=DIRECTORY, given several times.
#include "config/named_models.h"

#include <gtest/gtest.h>

#include <fstream>

#include "config/dump.h"
#include "config/parse.h"
#include "config/parsed_words.h"
#include "support/temp_directory.h"

namespace troupe::config {
namespace {

std::string refusal(const Words& words) {
  const auto result = parse(words, {});
  return result.ok() ? "" : result.status().message;
}

TEST(NamedModels, AreThoseOfEveryFlagInTheirOrder) {
  const Options o = parsed({"--model", "small=/m/a", "--model=baidu/big=/m/b,c"});
  const auto models = named_models(o.model.model);
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].name, "small");
  EXPECT_EQ(models[0].model, "/m/a");
  EXPECT_EQ(models[1].name, "baidu/big");
  EXPECT_EQ(models[1].model, "/m/b,c");
  EXPECT_EQ(o.own_engines(), 2);
}

TEST(NamedModels, OneOfThemIsAnOrdinaryModelOfThatName) {
  const Options o = parsed({"--model", "small=/m/a", "--served-model-name", "other"});
  EXPECT_EQ(o.model.model, "/m/a");
  EXPECT_EQ(o.model.served_model_names, (std::vector<std::string>{"small", "other"}));
  EXPECT_EQ(o.own_engines(), 1);
  EXPECT_TRUE(options_of_models(o)->empty());
}

TEST(NamedModels, APathIsNone) {
  for (const char* path : {"/m/a=b", "./a=b", "../a=b", "~/a=b", "a", "=a", "a="})
    EXPECT_FALSE(is_named_model(path)) << path;
  EXPECT_EQ(parsed({"--model", "/m/a=b"}).model.model, "/m/a=b");
}

TEST(NamedModels, OfTwoSourcesTheStrongerCounts) {
  const test::TempDirectory directory;
  const std::string file = directory.path() / "serve.yaml";
  std::ofstream(file) << "model: [a=/m/a, b=/m/b]\n";
  EXPECT_EQ(parsed({"--config", file}).model.model, "a=/m/a,b=/m/b");
  EXPECT_EQ(parsed({"--config", file, "--model", "/m/c"}).model.model, "/m/c");
  EXPECT_EQ(parsed({"--config", file, "--model", "c=/m/c", "--model", "d=/m/d"}).model.model,
            "c=/m/c,d=/m/d");
}

TEST(NamedModels, EachIsServedUnderItsNameAlone) {
  const auto each = options_of_models(
      parsed({"--model", "a=/m/a", "--model", "b=/m/b", "--any-model-name", "--seed", "7"}));
  ASSERT_EQ(each->size(), 2u);
  EXPECT_EQ(each->at(1).model.model, "/m/b");
  EXPECT_EQ(each->at(1).model.served_model_names, std::vector<std::string>{"b"});
  EXPECT_EQ(each->at(1).model.seed, 7);
  EXPECT_TRUE(each->at(0).model.any_model_name);
  EXPECT_FALSE(each->at(1).model.any_model_name);
}

TEST(NamedModels, AFileHasOptionsOfItsModelAlone) {
  const test::TempDirectory directory;
  const std::string file = directory.path() / "b.yaml";
  const Words words{"--model", "a=/m/a", "--model", "b=" + file, "--max-num-seqs", "4"};
  std::ofstream(file) << "model: /m/b\nreasoning-parser: ernie-x1\nmax-num-seqs: 2\n";
  const auto each = options_of_models(parsed(words));
  ASSERT_TRUE(each.ok()) << each.status().message;
  EXPECT_EQ(each->at(0).scheduler.max_num_seqs, 4);
  EXPECT_EQ(each->at(0).answers.reasoning_parser, "");
  EXPECT_EQ(each->at(1).model.model, "/m/b");
  EXPECT_EQ(each->at(1).scheduler.max_num_seqs, 2);
  EXPECT_EQ(each->at(1).answers.reasoning_parser, "ernie-x1");

  std::ofstream(file) << "model: /m/b\nport: 80\n";
  EXPECT_EQ(refusal(words), file + ": port is no option of one model; it is given for all");
  std::ofstream(file) << "seed: 1\n";
  EXPECT_NE(refusal(words).find("model is missing"), std::string::npos);
  std::ofstream(file) << "model: /m/b\nmax-model-len: 3\n";
  EXPECT_NE(refusal(words).find(file + ": --max-model-len"), std::string::npos);
}

TEST(NamedModels, WhatBelongsToOneModelIsRefused) {
  const auto with = [](Words more) {
    Words words{"--model", "a=/m/a", "--model", "b=/m/b"};
    words.insert(words.end(), more.begin(), more.end());
    return refusal(words);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"--served-model-name", "x"}),
            "--served-model-name: cannot be used with several models: each has the NAME of its --model "
            "NAME=DIRECTORY");
  EXPECT_NE(with({"--data-parallel-size", "3"}).find("each has one engine"), std::string::npos);
  EXPECT_NE(with({"--engines", "h:1"}).find("--engines: cannot be used"), std::string::npos);
  EXPECT_NE(with({"--splitwise-role", "prefill"}).find("--splitwise-role: cannot"), std::string::npos);
  EXPECT_EQ(with({"--model", "a=/m/c"}), "--model: names two models \"a\"; each needs a name of its own");
  EXPECT_NE(with({"--model", "/m/c"}).find("beside a model with a name"), std::string::npos);
}

TEST(NamedModels, TheDumpIsReadAgain) {
  const test::TempDirectory directory;
  const std::string file = directory.path() / "dump.json";
  std::ofstream(file) << to_config_file(parsed({"--model", "a=/m/a", "--model", "b=/m/b"}));
  EXPECT_EQ(parsed({"--config", file}).model.model, "a=/m/a,b=/m/b");
}

}  // namespace
}  // namespace troupe::config
