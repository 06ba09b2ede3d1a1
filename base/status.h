#pragma once
// Errors as values. Expected failures travel as Status or Result<T>; exceptions stay inside the
// library call that threw them, and never cross an actor, a thread or a process border.
#include <optional>
#include <string>
#include <utility>

namespace troupe {

/// Closed set of failures. The comment says when each happens; http/ maps it to a status.
enum class Code {
  ok,
  invalid_argument,  ///< the caller's input is wrong; the same call will fail again (400)
  unauthorized,      ///< missing or wrong key (401)
  forbidden,         ///< known, but not allowed to this key, page or name (403)
  not_found,         ///< no such model, route or file (404)
  too_large,         ///< over a published size limit (413)
  overloaded,        ///< a bounded queue is full; try later (429)
  cancelled,         ///< the client went away or the request was withdrawn
  unavailable,       ///< loading, draining, or a part is being restarted; try later (503)
  timeout,           ///< a deadline passed (504)
  unsupported,       ///< understood, but not offered here (400 or exit code 3)
  internal,          ///< a bug or a dead part; the request is lost (500)
};

const char* to_string(Code code);

/// Outcome of an operation that yields nothing. Default-constructed means success.
struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;   ///< one sentence: the field, the value got, what is allowed
  std::string param{};   ///< dotted path of the offending field ("messages.0.role"), or empty
  std::string reason{};  ///< short machine-readable word ("out_of_range"), or empty

  bool ok() const { return code == Code::ok; }
  explicit operator bool() const { return ok(); }
};

inline Status invalid(std::string message, std::string param = {}, std::string reason = {}) {
  return {Code::invalid_argument, std::move(message), std::move(param), std::move(reason)};
}
inline Status failure(Code code, std::string message) { return {code, std::move(message)}; }

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by intent
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by intent
    if (status_.ok()) status_ = failure(Code::internal, "success without a value");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace troupe
