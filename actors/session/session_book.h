#pragma once
// The open sessions of one SESSION HOST and the way from a sequence's key to its session. Pure: what has
// to be sent is left in Effects.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/session/session.h"

namespace troupe {

/// A source of keys that never repeat: 128 random bits drawn once, then counted.
class KeySource {
 public:
  KeySource();
  explicit KeySource(RequestKey first) : next_(first) {}
  RequestKey operator()() {
    ++next_.lo;
    return next_;
  }

 private:
  RequestKey next_;
};

/// Used by one thread. Every call appends to the Effects that the caller then carries out.
class SessionBook {
 public:
  SessionBook(std::shared_ptr<const SessionContext> context, KeySource keys)
      : context_(std::move(context)), keys_(std::move(keys)) {}

  /// Opens a session. The exchange's id must not be open yet.
  void open(Ask ask);

  /// Prompts of an open session; returns what goes to the SCHEDULER (perhaps nothing).
  Submit encoded(std::uint64_t exchange, Encoded encoded, std::int64_t now_ns, Effects& effects);

  /// One step's tokens, whatever sessions they belong to.
  void take(const StepTokens& step, std::int64_t now_ns, Effects& effects);

  /// The request cannot go on (refused by the SCHEDULER, TOKENIZER dead).
  void fail(std::uint64_t exchange, const Status& status, std::int64_t now_ns, Effects& effects);
  void fail_all(const Status& status, std::int64_t now_ns, Effects& effects);
  void withdraw(std::uint64_t exchange, std::int64_t now_ns, Effects& effects);

  /// Exchanges that closed since the last call; each may be answered to its admission now.
  std::vector<std::uint64_t> take_closed() { return std::exchange(closed_, {}); }

  const Session* find(std::uint64_t exchange) const;
  std::size_t size() const { return sessions_.size(); }

 private:
  struct Place {
    std::uint64_t exchange = 0;
    std::size_t choice = 0;
  };
  struct Open {
    std::unique_ptr<Session> session;
    std::vector<RequestKey> keys;
    std::uint64_t touched = 0;  ///< the take() that flushes it
  };

  void settle(std::uint64_t exchange);

  std::shared_ptr<const SessionContext> context_;
  KeySource keys_;
  std::unordered_map<std::uint64_t, Open> sessions_;  ///< by exchange
  std::unordered_map<RequestKey, Place> places_;
  std::vector<std::uint64_t> touched_;  ///< of the take() that is under way
  std::vector<std::uint64_t> closed_;
  std::uint64_t takes_ = 0;
};

}  // namespace troupe
