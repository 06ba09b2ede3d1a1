#pragma once
// The exchange between one connection and the backend, and the count of those that are not settled. Private
// to connection.cpp.
#include <cstddef>
#include <memory>

#include "http/server/backend.h"
#include "http/server/io_thread.h"

namespace troupe::http {

/// At most one exchange is open at a time. Used by the thread of `io`, which outlives it.
class OpenExchange {
 public:
  explicit OpenExchange(IoThread& io) : io_(io) {}

  /// The open exchange; opens one for `owner` when there is none. The server counts as active from now on
  /// until settle().
  Exchange open(const std::shared_ptr<Connection>& owner);
  /// True when this one is open.
  bool is(Exchange exchange) const { return exchange_ == exchange; }
  /// True while one is open that the backend does not have yet: its body is being parsed.
  bool parsing() const { return exchange_.id != 0 && !submitted_; }

  /// Gives the call of the open exchange to the backend.
  void submit(Call&& call);
  /// The answer is complete: outputs for the exchange are dropped from now on. Nothing when none is open.
  void close();
  /// As close(), for an answer that is not complete. Returns the exchange that the backend has to cancel; id
  /// 0: none.
  Exchange abandon();
  /// The answers of closed exchanges are sent or given up.
  void settle();

 private:
  IoThread& io_;
  Exchange exchange_{};        // id 0: none is open
  bool submitted_ = false;     // the backend has it
  std::size_t unsettled_ = 0;  // closed exchanges
};

}  // namespace troupe::http
