#pragma once
// tokenizer.json of Hugging Face tokenizers: byte-level BPE, and BPE with byte fallback ("llama style").
#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer/files.h"

namespace troupe {

/// `shared`: as for Tokenizer::load().
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(
    const std::string& path, const TokenizerFiles& files,
    std::shared_ptr<const VocabularyImage> shared = nullptr);

}  // namespace troupe
