#include "http/server/parse_thread.h"

#include <pthread.h>

#include "base/thread_priority.h"

namespace troupe::http {

void ParseThread::start(const char* name) {
  context_.emplace(1);
  work_.emplace(context_->get_executor());
  thread_ = std::thread([this] {
    lower_thread_priority();
    context_->run();
  });
  ::pthread_setname_np(thread_.native_handle(), name);
}

void ParseThread::stop() {
  if (!thread_.joinable()) return;
  context_->stop();
  thread_.join();
  work_.reset();
  context_.reset();
}

}  // namespace troupe::http
