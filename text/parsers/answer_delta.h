#pragma once
// What an answer is made of for its client: thoughts, text and tool calls.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// A part of one tool call. The pieces of one index, joined, are the call.
struct ToolCallPiece {
  std::int32_t index = 0;
  std::string name;       ///< of the function; set in the call's first piece and empty in all others
  std::string arguments;  ///< a fragment of the arguments' JSON, as the model wrote it

  bool operator==(const ToolCallPiece&) const = default;
};

/// Adds a piece to pieces of the same answer; one that continues the last call becomes part of it.
inline void append_piece(std::vector<ToolCallPiece>& pieces, ToolCallPiece&& piece) {
  if (!pieces.empty() && pieces.back().index == piece.index && piece.name.empty()) {
    pieces.back().arguments += piece.arguments;
  } else {
    pieces.push_back(std::move(piece));
  }
}

/// What became certain since the last delta. Deltas of one answer, appended, are the whole answer.
struct AnswerDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;  ///< in the order of their index
};

}  // namespace troupe
