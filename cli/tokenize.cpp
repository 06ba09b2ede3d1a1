#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "config/validate.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kMaxInput = 64 << 20;

Result<std::string> read_text() {
  std::string text;
  char bytes[1 << 16];
  while (std::cin.read(bytes, sizeof bytes), std::cin.gcount() > 0) {
    text.append(bytes, static_cast<std::size_t>(std::cin.gcount()));
    if (text.size() > kMaxInput) return invalid("standard input holds more than 64 MiB");
  }
  return text;
}

std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int encode(const Tokenizer& tokenizer, const std::string& text, bool plain, bool json) {
  const std::vector<TokenId> ids =
      tokenizer.encode(text, plain ? SpecialTokens::plain : SpecialTokens::parse);
  if (json) {
    std::printf("%s\n", dump({{"tokens", ids}, {"count", ids.size()}}).c_str());
    return 0;
  }
  for (TokenId id : ids) {
    nlohmann::ordered_json piece = std::string(tokenizer.token_bytes(id));
    std::printf("%8d  %s%s\n", id, printable(dump(piece)).c_str(),
                tokenizer.is_special(id) ? "  special" : "");
  }
  std::printf("%zu tokens\n", ids.size());
  return 0;
}

Result<std::string> decode(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string text;
  for (int id : ids) {
    if (id >= tokenizer.vocab_size()) {
      return invalid("--decode: token " + std::to_string(id) + " does not exist, expected ids from 0 to " +
                     std::to_string(tokenizer.vocab_size() - 1));
    }
    text += tokenizer.token_bytes(id);
  }
  return text;
}

}  // namespace

int tokenize_main(int argc, char** argv) {
  const Synopsis synopsis{"tokenize", "text to tokens and back, without a server",
                          "troupe tokenize [--model DIRECTORY] [TEXT] [OPTION…]",
                          "  troupe tokenize \"Hello, world\"\n"
                          "  troupe tokenize --model /models/ERNIE-4.5-0.3B-PT --json < prompt.txt\n"
                          "  troupe tokenize --decode 19556,28,905\n"
                          "  troupe tokenize --vocab-size\n"};
  config::ModelOptions model;
  std::string text;
  std::vector<int> ids;
  bool plain = false;
  bool json = false;
  bool size = false;
  const std::vector<config::Field> fields = {
      {.name = "model",
       .slot = &model.model,
       .help = "checkpoint directory, or a name under $FD_MODEL_CACHE",
       .aliases = {"model-name-or-path"},
       .when_unset = "the demo model"},
      {.name = "model-cache",
       .slot = &model.model_cache,
       .help = "directory in which names given to --model are looked up",
       .env = "FD_MODEL_CACHE"},
      {.name = "tokenizer",
       .slot = &model.tokenizer,
       .help = "directory or file of the tokenizer",
       .when_unset = "--model"},
      {.name = "encode", .slot = &text, .help = "text to encode", .when_unset = "TEXT, or standard input"},
      {.name = "decode", .slot = &ids, .help = "ids to decode, with commas", .min = 0, .max = 1 << 30},
      {.name = "plain", .slot = &plain, .help = "text that spells a special token is ordinary text"},
      {.name = "json", .slot = &json, .help = "print JSON"},
      {.name = "vocab-size", .slot = &size, .help = "print the size of the vocabulary"},
  };
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;

  std::error_code error;
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (model.tokenizer.empty()) {
    const Status status = config::resolve_model(model, config::Device::automatic, executable);
    if (!status.ok()) return fail(synopsis, status);
  }
  const auto tokenizer = Tokenizer::load(model.directory, model.tokenizer);
  if (!tokenizer.ok()) return fail(synopsis, tokenizer.status());
  if (size) {
    std::printf("%d\n", (*tokenizer)->vocab_size());
    return 0;
  }
  if (!ids.empty()) {
    const Result<std::string> decoded = decode(**tokenizer, ids);
    if (!decoded.ok()) return fail(synopsis, decoded.status());
    if (json)
      std::printf("%s\n", dump({{"text", *decoded}}).c_str());
    else
      std::printf("%s\n", printable(*decoded).c_str());
    return 0;
  }
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  if (text.empty()) {
    Result<std::string> input = read_text();
    if (!input.ok()) return fail(synopsis, input.status());
    text = std::move(*input);
  }
  return encode(**tokenizer, text, plain, json);
}

}  // namespace troupe::cli
