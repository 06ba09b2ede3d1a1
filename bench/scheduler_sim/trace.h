#pragma once
// Synthetic requests for the scheduler's simulator: lengths, arrivals and texts. Pure; the same seed gives
// the same trace.
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace troupe::bench {

inline constexpr std::uint32_t kNoTurn = UINT32_MAX;

/// One request: a chat's turn, or a chat of one turn. The text of a chat is one endless sequence of tokens; a
/// turn's prompt and answer are ranges of it, so a later turn's prompt begins with everything before it.
struct TraceTurn {
  std::uint32_t chat = 0;
  std::uint32_t next = kNoTurn;  ///< the chat's next turn
  bool opens_chat = true;
  /// Arrival of a first turn, in seconds from the start; of a later one, the pause after the answer before
  /// it.
  double at_s = 0;
  std::int32_t prompt_tokens = 0;  ///< of the whole prompt, earlier turns included
  std::int32_t output_tokens = 0;  ///< the answer ends with a stop token after so many
};

inline constexpr int kMaxTurns = 16;

struct TraceChat {
  std::uint32_t system = 0;  ///< which system prompt its text begins with
  std::int32_t system_tokens = 0;
};

/// A log-normal number of tokens, kept within [1, most].
struct LengthDistribution {
  double median = 100;
  double sigma = 1;  ///< of the logarithm
  std::int32_t most = 8192;
};

struct TraceOptions {
  std::string name;
  std::uint32_t requests = 10'000;  ///< about so many turns in all; at least one chat
  double rate = 10;                 ///< requests a second, later turns included
  LengthDistribution prompt;        ///< what a turn adds to the chat
  LengthDistribution output;
  double mean_turns = 1;      ///< of a chat; geometrically distributed, kMaxTurns at most
  double pause_s = 5;         ///< median pause between turns, log-normal
  std::uint32_t systems = 0;  ///< different system prompts; 0: none
  std::int32_t system_tokens = 0;
  /// Above 0: a closed loop of so many clients, each of which sends a request of its own text when the one
  /// before it has ended. Instead of a rate and of turns.
  std::uint32_t clients = 0;
  double burst = 1;                      ///< above 1: chats arrive in bursts of so many on average
  double documents = 0;                  ///< share of chats whose first prompt is a document
  std::int32_t document_least = 16'000;  ///< a document's tokens are uniform in this range
  std::int32_t document_most = 60'000;
  std::uint64_t seed = 1;
};

struct Trace {
  TraceOptions options;
  std::vector<TraceTurn> turns;  ///< first turns in order of arrival, each followed by its chat's other turns
  std::vector<TraceChat> chats;

  /// Token at `position` of a chat's text: below kTraceStop.
  TokenId token(std::uint32_t chat, std::int32_t position) const;
};

/// Ids of texts are below this one, which ends every answer.
inline constexpr TokenId kTraceStop = 99'999;
inline constexpr std::int32_t kTraceVocab = 100'000;

/// Token at `position` of the endless text with a number: below kTraceStop.
TokenId text_token(std::uint64_t text, std::int32_t position);

Trace make_trace(const TraceOptions& options);

}  // namespace troupe::bench
