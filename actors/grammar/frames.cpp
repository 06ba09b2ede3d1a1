#include "actors/grammar/frames.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>

namespace troupe::frames {
namespace {

constexpr int kPatienceMs = 100;
constexpr char kForm = 'f', kSortVocabulary = 'v', kSource = 's';  // the first byte of a job

/// Moves `size` bytes by calls of `move`, each behind a wait until the socket is ready for `event`.
template <class Move>
Outcome move_all(int fd, short event, std::size_t size, const std::function<bool()>& exceeded,
                 const std::atomic<bool>* given_up, Move move) {
  for (std::size_t done = 0; done < size;) {
    if (given_up != nullptr && *given_up) return Outcome::closed;
    pollfd waited{fd, event, 0};
    const int ready = ::poll(&waited, 1, exceeded ? kPatienceMs : -1);
    if (ready == 0 && exceeded && exceeded()) return Outcome::timeout;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t moved = move(done);
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved <= 0) return Outcome::closed;
    done += static_cast<std::size_t>(moved);
  }
  return Outcome::done;
}

Outcome write_all(int fd, const char* bytes, std::size_t size, const std::function<bool()>& exceeded,
                  const std::atomic<bool>* given_up) {
  return move_all(fd, POLLOUT, size, exceeded, given_up, [&](std::size_t done) {
    return ::send(fd, bytes + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

Outcome read_all(int fd, char* bytes, std::size_t size, const std::function<bool()>& exceeded,
                 const std::atomic<bool>* given_up) {
  return move_all(fd, POLLIN, size, exceeded, given_up,
                  [&](std::size_t done) { return ::recv(fd, bytes + done, size - done, MSG_DONTWAIT); });
}

template <class T>
void put_raw(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
bool take_raw(std::string_view& in, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return true;
}

void put(std::string& out, std::string_view text) {
  put_raw(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

bool take(std::string_view& in, std::string& text) {
  std::uint32_t size = 0;
  if (!take_raw(in, size) || in.size() < size) return false;
  text = in.substr(0, size);
  in.remove_prefix(size);
  return true;
}

/// One of the values up to `last`.
template <class Enum>
bool take_enum(std::string_view& in, Enum& value, Enum last) {
  if (in.empty() || static_cast<unsigned char>(in[0]) > static_cast<unsigned char>(last)) return false;
  value = static_cast<Enum>(in[0]);
  in.remove_prefix(1);
  return true;
}

}  // namespace

Outcome write(int fd, std::string_view bytes, const std::function<bool()>& exceeded,
              const std::atomic<bool>* given_up) {
  const std::uint64_t size = bytes.size();
  const Outcome head = write_all(fd, reinterpret_cast<const char*>(&size), sizeof size, exceeded, given_up);
  return head != Outcome::done ? head : write_all(fd, bytes.data(), bytes.size(), exceeded, given_up);
}

bool write(int fd, std::string_view bytes) { return write(fd, bytes, nullptr, nullptr) == Outcome::done; }

Outcome read(int fd, std::string& bytes, const std::function<bool()>& exceeded,
             const std::atomic<bool>* given_up) {
  std::uint64_t size = 0;
  const Outcome head = read_all(fd, reinterpret_cast<char*>(&size), sizeof size, exceeded, given_up);
  if (head != Outcome::done) return head;
  if (size > kMaxBytes) return Outcome::closed;
  bytes.resize(size);
  return read_all(fd, bytes.data(), size, exceeded, given_up);
}

Outcome read(int fd, std::string& bytes) { return read(fd, bytes, nullptr, nullptr); }

std::string to_bytes(const Rules& rules) {
  std::string out;
  out += rules.any_whitespace ? '\1' : '\0';
  put_raw(out, rules.limits);
  put_raw(out, rules.vocabulary);
  for (const TokenId id : rules.stop_ids) put_raw(out, id);
  return out;
}

std::optional<Rules> rules_from_bytes(std::string_view bytes) {
  Rules rules;
  bool any_whitespace = false;
  if (!take_enum(bytes, any_whitespace, true) || !take_raw(bytes, rules.limits) ||
      !take_raw(bytes, rules.vocabulary))
    return std::nullopt;
  rules.any_whitespace = any_whitespace;
  for (TokenId id = 0; take_raw(bytes, id);) rules.stop_ids.push_back(id);
  if (!bytes.empty()) return std::nullopt;
  return rules;
}

std::string to_job(const grammar::Form& form) {
  std::string out = {kForm, static_cast<char>(form.kind)};
  put(out, form.param);
  return out += form.value;
}

std::string to_job(const SortVocabulary&) { return {kSortVocabulary}; }

std::string to_job(const grammar::Source& source) { return kSource + to_bytes(source); }

std::optional<Job> job_from_bytes(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  const char which = bytes[0];
  bytes.remove_prefix(1);
  switch (which) {
    case kForm: {
      grammar::Form form;
      if (!take_enum(bytes, form.kind, grammar::Form::Kind::structural_tag) || !take(bytes, form.param))
        return std::nullopt;
      form.value = bytes;
      return form;
    }
    case kSortVocabulary: return SortVocabulary{};
    case kSource: {
      auto source = source_from_bytes(bytes);
      if (!source) return std::nullopt;
      return *std::move(source);
    }
    default: return std::nullopt;
  }
}

std::string to_bytes(const grammar::Source& source) {
  std::string out;
  out += static_cast<char>(source.kind);
  out += source.any_whitespace ? '\1' : '\0';
  return out + source.text;
}

std::optional<grammar::Source> source_from_bytes(std::string_view bytes) {
  grammar::Source source;
  if (!take_enum(bytes, source.kind, grammar::Source::Kind::structural_tag) ||
      !take_enum(bytes, source.any_whitespace, true))
    return std::nullopt;
  source.text = bytes;
  return source;
}

std::string to_bytes(const Status& status, std::string_view rest) {
  std::string out(1, static_cast<char>(status.code));
  put(out, status.message);
  put(out, status.param);
  put(out, status.reason);
  return out.append(rest);
}

std::optional<Answer> answer_from_bytes(std::string_view bytes) {
  Answer answer;
  Status& status = answer.status;
  if (!take_enum(bytes, status.code, Code::internal) || !take(bytes, status.message) ||
      !take(bytes, status.param) || !take(bytes, status.reason))
    return std::nullopt;
  answer.rest = bytes;
  return answer;
}

}  // namespace troupe::frames
