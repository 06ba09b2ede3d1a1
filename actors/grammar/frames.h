#pragma once
// Messages over a socket between the engine and a process for forms: a length and so many bytes. Both are of
// the same build on the same machine.
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/grammar/compiler.h"
#include "text/grammar/form.h"

namespace troupe::frames {

/// A compiled form of a large vocabulary takes tens of megabytes.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

enum class Outcome : std::uint8_t { done, closed, timeout };

/// Writes a whole frame, however long that takes. False when the other side is gone.
bool write(int fd, std::string_view bytes);

/// Writes a whole frame. Gives up when `exceeded` returns true, and when `given_up` is; both are looked at
/// every tenth of a second. `closed` stands for everything else that ends the connection.
Outcome write(int fd, std::string_view bytes, const std::function<bool()>& exceeded,
              const std::atomic<bool>* given_up);

/// Reads a whole frame. Gives up as write() does.
Outcome read(int fd, std::string& bytes, const std::function<bool()>& exceeded,
             const std::atomic<bool>* given_up);

/// Reads a whole frame, however long that takes.
Outcome read(int fd, std::string& bytes);

// A process is told its Rules and the bytes of a VocabularyImage, one frame each, and says kReady. Then it
// answers one Job after another with an Answer.

inline constexpr std::string_view kReady = "ready";

/// How forms are checked, and for which model they are compiled.
struct Rules {
  bool any_whitespace = true;
  grammar::FormLimits limits;
  std::int32_t vocabulary = 0;    ///< of the model
  std::vector<TokenId> stop_ids;  ///< end an answer that is complete
};

/// What the first Source needs, so that its own time begins behind it. Answered with an ok and nothing else.
struct SortVocabulary {};

/// A Form is checked: answered with a refusal or the bytes of a Source. A Source is compiled: a refusal or
/// the bytes of a grammar::CompiledForm.
using Job = std::variant<grammar::Form, SortVocabulary, grammar::Source>;

struct Answer {
  Status status;
  std::string_view rest;  ///< when it is ok
};

std::string to_bytes(const Rules& rules);
std::string to_job(const grammar::Form& form);
std::string to_job(const SortVocabulary&);
std::string to_job(const grammar::Source& source);
std::string to_bytes(const grammar::Source& source);
std::string to_bytes(const Status& status, std::string_view rest);

// From those. Nothing: the bytes are cut or damaged.
std::optional<Rules> rules_from_bytes(std::string_view bytes);
std::optional<Job> job_from_bytes(std::string_view bytes);
std::optional<grammar::Source> source_from_bytes(std::string_view bytes);
std::optional<Answer> answer_from_bytes(std::string_view bytes);  ///< `rest` views `bytes`

}  // namespace troupe::frames
