#pragma once
// Unicode normalisation form C, by the tables of tokenizer_nfc_table.h (Unicode 14.0).
#include <string>
#include <string_view>

namespace troupe {

/// `text` is valid UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace troupe
