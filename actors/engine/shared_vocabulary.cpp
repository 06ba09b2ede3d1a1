#include "actors/engine/shared_vocabulary.h"

#include "ipc/memory_file.h"

namespace troupe {

Result<std::shared_ptr<const VocabularyImage>> map_vocabulary(int fd) {
  if (fd < 0) return failure(Code::not_found, "no vocabulary is shared");
  const auto mapped = ipc::map_constant_file(fd);
  if (!mapped.ok()) return mapped.status();
  return VocabularyImage::view(mapped->bytes, mapped->owner);
}

}  // namespace troupe
