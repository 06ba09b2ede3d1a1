#pragma once
// A thread for bodies that would keep an I/O thread from its connections. Private to the files that know Asio.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <thread>
#include <utility>

namespace troupe::http {

class ParseThread {
 public:
  ~ParseThread() { stop(); }

  void start();
  /// Waits for the job that runs; the others are dropped. Only when nobody posts any more.
  void stop();

  /// Jobs run in order, one at a time, and give way to other threads of the process. They throw nothing.
  template <class Job>
  void post(Job&& job) {
    boost::asio::post(*context_, std::forward<Job>(job));
  }

 private:
  std::optional<boost::asio::io_context> context_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;
};

}  // namespace troupe::http
