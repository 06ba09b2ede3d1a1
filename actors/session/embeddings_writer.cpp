#include "actors/session/embeddings_writer.h"

#include "http/api/embeddings_answer.h"

namespace troupe {

bool EmbeddingsWriter::append(std::string& out, AnswerContent& content, const Slice& slice) {
  if (!content.finished()) return true;
  if (written_ == 0) http::append_embeddings_begin(out);
  for (; written_ < content.sequences.size(); ++written_) {
    if (written_ > 0 && slice.over()) return false;
    const SessionSequence& sequence = content.sequences[written_];
    http::append_embedding(out, ask_.answer.embedding, sequence.index, sequence.choice.embedding());
  }
  http::append_embeddings_end(out, ask_.answer, usage_of(ask_, content));
  return true;
}

}  // namespace troupe
