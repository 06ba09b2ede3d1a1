#pragma once
// The vocabulary that all processes of a server share: the supervisor makes it, front and engine map it.
#include <memory>

#include "base/log.h"
#include "base/status.h"
#include "config/options.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {

/// Maps the memory file that --vocabulary-fd names. Not ok: there is none (not_found), or another version of
/// the program has made it; the process then reads the tokenizer's files itself.
Result<std::shared_ptr<const VocabularyImage>> map_vocabulary(int fd);

/// What tokens print: from map_vocabulary(fd), else from the tokenizer's files, by a copy of this process;
/// then `log` is told why, unless no file was named, and `answers`, where given, gets what the tokenizer
/// alone can tell. The errors are those of the tokenizer's files.
Result<std::shared_ptr<const VocabularyImage>> read_texts(const config::ModelOptions& model, int fd,
                                                          const Log& log,
                                                          config::AnswerOptions* answers = nullptr);

}  // namespace troupe
