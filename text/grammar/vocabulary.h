#pragma once
// A model's vocabulary as grammars see it: the bytes that each token prints.
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe::grammar {

struct Vocabulary {
  std::vector<std::string> tokens;  ///< by id; empty: no grammar ever allows the token
  std::vector<TokenId> stop_ids;    ///< end an answer that is complete
};

/// The first byte of a token that no text can spell: it is no byte of UTF-8. A grammar allows such a token by
/// its id only.
inline constexpr char kByIdOnly = '\xFF';

/// Of a model with `size` ids. Special tokens are by id only; tokens with bytes that UTF-8 does not have are
/// empty.
Vocabulary vocabulary_of(const TokenTexts& texts, int size, const std::vector<TokenId>& stop_ids);

std::string to_bytes(const Vocabulary& vocabulary);
/// Not ok: the bytes are cut or damaged.
Result<Vocabulary> vocabulary_from_bytes(std::string_view bytes);

}  // namespace troupe::grammar
