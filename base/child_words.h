#pragma once
// The words with which a parent starts a child process of this program.
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The descriptor behind the word that begins with `name`, such as "--fd="; closed from now on when this
/// process runs another program. -1 when no word names one that is open.
int descriptor_of(const std::vector<std::string>& words, std::string_view name);

}  // namespace troupe
