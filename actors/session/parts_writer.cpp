#include "actors/session/parts_writer.h"

#include <string_view>
#include <utility>

namespace troupe {

namespace {

using PartKind = http::AnswerPart::Kind;

}  // namespace

// One choice without scores is never much to write.
bool PartsWriter::append(std::string& out, AnswerContent& content, const Slice&) {
  SessionSequence& sequence = content.sequences.front();
  if (!sequence.choice.started()) return true;
  const std::int32_t tokens = sequence.choice.output_tokens();
  if (!sequence.choice.finished() && tokens - sequence.sent_tokens < ask_.answer.tokens_per_event)
    return true;
  sequence.sent_tokens = tokens;
  if (streams() && !std::exchange(begun_, true)) begin(out, content);
  ChoiceDelta delta = sequence.choice.take_delta();
  const http::FinishReason finish = delta.finish;
  take(out, sequence, std::move(delta));
  if (finish == http::FinishReason::none) return true;
  close(out, finish == http::FinishReason::stop || finish == http::FinishReason::tool_calls);
  if (streams()) {
    end(out, content, finish);
  } else {
    append_whole(out, content, finish);
  }
  return true;
}

void PartsWriter::take(std::string& out, const SessionSequence& sequence, ChoiceDelta&& delta) {
  if (delta.order.empty()) return add(out, sequence.key, PartKind::text, delta.text);
  std::string_view text = delta.text, reasoning = delta.reasoning;
  std::size_t call = 0;
  for (const ChoiceDelta::Run& run : delta.order) {
    switch (run.kind) {
      case ChoiceDelta::Run::Kind::text:
        add(out, sequence.key, PartKind::text, text.substr(0, run.size));
        text.remove_prefix(run.size);
        break;
      case ChoiceDelta::Run::Kind::reasoning:
        add(out, sequence.key, PartKind::thoughts, reasoning.substr(0, run.size));
        reasoning.remove_prefix(run.size);
        break;
      case ChoiceDelta::Run::Kind::call:
        for (const std::size_t end = call + run.size; call < end; ++call)
          add_call(out, sequence.key, std::move(delta.calls[call]));
        break;
    }
  }
}

void PartsWriter::add(std::string& out, const RequestKey& key, PartKind kind, std::string_view text) {
  if (text.empty()) return;
  if (!open_ || parts_.back().kind != kind) {
    http::AnswerPart part;
    part.kind = kind;
    open(out, key, std::move(part));
  }
  extend(out, text);
}

void PartsWriter::add_call(std::string& out, const RequestKey& key, ToolCallPiece&& piece) {
  if (!piece.name.empty()) {
    http::AnswerPart part;
    part.kind = PartKind::call;
    part.name = std::move(piece.name);
    open(out, key, std::move(part));
  }
  if (!piece.arguments.empty()) extend(out, piece.arguments);
}

void PartsWriter::extend(std::string& out, std::string_view text) {
  parts_.back().text += text;
  if (streams()) grow(out, text);
}

void PartsWriter::open(std::string& out, const RequestKey& key, http::AnswerPart&& part) {
  close(out, /*complete=*/true);
  name(part, key);
  parts_.push_back(std::move(part));
  open_ = true;
  if (streams()) begin_part(out);
}

void PartsWriter::close(std::string& out, bool complete) {
  if (!std::exchange(open_, false)) return;
  parts_.back().complete = complete;
  if (streams()) end_part(out);
}

}  // namespace troupe
