#pragma once
// tokenizer.model, through libsentencepiece.
#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer/files.h"

namespace troupe {

/// `shared`: as for Tokenizer::load().
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_model(
    const std::string& path, const TokenizerFiles& files,
    std::shared_ptr<const VocabularyImage> shared = nullptr);

}  // namespace troupe
