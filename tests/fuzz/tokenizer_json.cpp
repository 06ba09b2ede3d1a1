// tokenizer.json: any file loads or is refused; what loads encodes to ids of its vocabulary.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "fuzz/target.h"
#include "text/text_span.h"
#include "text/tokenizer/json.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {
namespace {

FUZZ_TARGET(tokenizer_json) {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("troupe-fuzz-" + std::to_string(::getpid()) + ".json"))
          .string();
  std::ofstream(path, std::ios::binary | std::ios::trunc) << fuzz::text(input);
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    const auto loaded = load_tokenizer_json(path, TokenizerFiles{});
    if (loaded.ok()) tokenizer = *loaded;
  } catch (const nlohmann::json::exception&) {  // a field of the wrong type, which Tokenizer::load() reports
  }
  std::filesystem::remove(path);
  if (tokenizer == nullptr) return;
  std::vector<TextSpan> prompt{
      {"Hello, \xc3\xa9 world 123\n\n<s>", false}, {"<s>", true}, {"\xff\xfe", false}};
  for (const TokenId id : tokenizer->encode(prompt)) {
    fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "ids are of the vocabulary");
    (void)tokenizer->token_bytes(id);
  }
}

}  // namespace
}  // namespace troupe
