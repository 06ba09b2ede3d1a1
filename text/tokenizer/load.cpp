#include <exception>
#include <filesystem>

#include "text/tokenizer/json.h"
#include "text/tokenizer/sentencepiece.h"

namespace troupe {
namespace {

Result<std::shared_ptr<const Tokenizer>> load_file(const std::filesystem::path& file,
                                                   std::shared_ptr<const VocabularyImage> shared) {
  Result<TokenizerFiles> files = TokenizerFiles::read(file.parent_path().string());
  if (!files.ok()) return files.status();
  return file.extension() == ".json" ? load_tokenizer_json(file.string(), *files, std::move(shared))
                                     : load_tokenizer_model(file.string(), *files, std::move(shared));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& model_dir,
                                                         const std::string& path,
                                                         std::shared_ptr<const VocabularyImage> shared) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path given = path.empty() ? fs::path(model_dir) : fs::path(path);
  fs::path file = given;
  if (fs::is_directory(given, error)) {
    file = given / "tokenizer.model";
    if (!fs::exists(file, error)) file = given / "tokenizer.json";
    if (!fs::exists(file, error)) {
      return failure(
          Code::not_found,
          given.string() + " has no tokenizer: neither tokenizer.model nor tokenizer.json is there");
    }
  } else if (!fs::is_regular_file(given, error)) {
    return failure(Code::not_found, "the tokenizer " + given.string() + " does not exist");
  }
  try {
    return load_file(file, std::move(shared));
  } catch (const std::exception& error) {  // the JSON library's, for a field of the wrong type
    return invalid(file.string() + " is not a tokenizer: " + error.what());
  }
}

}  // namespace troupe
