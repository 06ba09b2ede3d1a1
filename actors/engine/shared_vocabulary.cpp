#include "actors/engine/shared_vocabulary.h"

#include "ipc/memory_file.h"
#include "text/parsers/choose_syntax.h"

namespace troupe {

Result<std::shared_ptr<const VocabularyImage>> map_vocabulary(int fd) {
  if (fd < 0) return failure(Code::not_found, "no vocabulary is shared");
  const auto mapped = ipc::map_constant_file(fd);
  if (!mapped.ok()) return mapped.status();
  return VocabularyImage::view(mapped->bytes, mapped->owner);
}

Result<std::shared_ptr<const VocabularyImage>> read_texts(const config::ModelOptions& model, int fd,
                                                          const Log& log, config::AnswerOptions* answers) {
  const auto shared = map_vocabulary(fd);
  if (shared.ok()) return *shared;
  if (shared.status().code != Code::not_found)
    log.warning("own_vocabulary", {kv("why", shared.status().message)});
  const auto tokenizer = Tokenizer::load(model.directory, model.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  if (answers != nullptr) {
    auto thinking_end = encode_thinking_end(*answers, **tokenizer);
    if (!thinking_end.ok()) return thinking_end.status();
    answers->found_thinking_end = *std::move(thinking_end);
  }
  return VocabularyImage::copy_of(**tokenizer);
}

}  // namespace troupe
