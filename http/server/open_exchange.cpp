#include "http/server/open_exchange.h"

#include <utility>

namespace troupe::http {

Exchange OpenExchange::open(const std::shared_ptr<Connection>& owner) {
  if (exchange_.id == 0) exchange_ = io_.open_exchange(owner);
  return exchange_;
}

void OpenExchange::submit(Call&& call) {
  submitted_ = true;
  io_.shared().backend.submit(std::move(call));
}

void OpenExchange::close() {
  if (exchange_.id == 0) return;
  io_.close_exchange(std::exchange(exchange_, {}));
  submitted_ = false;
  ++unsettled_;
}

Exchange OpenExchange::abandon() {
  const Exchange unanswered = submitted_ ? exchange_ : Exchange{};
  close();
  return unanswered;
}

void OpenExchange::settle() { io_.settle(std::exchange(unsettled_, 0)); }

}  // namespace troupe::http
