#pragma once
// The vocabulary that all processes of a server share: the supervisor makes it, front and engine map it.
#include <memory>

#include "base/status.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {

/// Maps the memory file that --vocabulary-fd names. Not ok: there is none (not_found), or another version of
/// the program has made it; the process then reads the tokenizer's files itself.
Result<std::shared_ptr<const VocabularyImage>> map_vocabulary(int fd);

}  // namespace troupe
