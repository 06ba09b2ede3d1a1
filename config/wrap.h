#pragma once
#include <string>
#include <string_view>

namespace troupe::config {

/// `text` broken at spaces into lines of at most `width` columns; every line after the first of a paragraph
/// begins with `indent` spaces, which count. Words that are longer stay whole. Newlines in `text` stay.
std::string wrap(std::string_view text, int indent, int width);

}  // namespace troupe::config
