#pragma once
// Messages over a socket between the engine and its compiling child: a length and so many bytes.
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/grammar/compiler.h"

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

/// What the child is asked, and what it answers: bytes of a compiled form, or a refusal.
std::string to_bytes(const grammar::Source& source);
Result<grammar::Source> source_from_bytes(std::string_view bytes);
std::string to_bytes(const Status& status, std::string_view form);
/// The refusal; when it is ok, `form` views the bytes of the form.
Status answer_from_bytes(std::string_view bytes, std::string_view& form);

}  // namespace troupe::frames
