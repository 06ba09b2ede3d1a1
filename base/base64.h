#pragma once
// Base64 of RFC 4648 §4, written with padding and read strictly.
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe {

/// The bytes. Padding may be absent. invalid_argument, with the offset of the first fault: a character
/// outside the alphabet (blanks, line ends and the URL-safe alphabet's "-" and "_" are outside), "=" before
/// the end, a length that no bytes have, or bits behind the last byte that are not 0.
Result<std::string> decode_base64(std::string_view text);

/// Appends the bytes as base64.
void append_base64(std::string& out, std::string_view bytes);

}  // namespace troupe
