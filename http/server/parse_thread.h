#pragma once
// A thread for bodies that would keep an I/O thread from its connections too long. Private to the files that
// know Asio.
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

namespace troupe::http {

class ParseThread {
 public:
  ~ParseThread() { stop(); }

  /// `name`: at most 15 characters.
  void start(const char* name);
  /// Waits for the job that runs; the others are dropped. Only when nobody posts any more.
  void stop();

  /// Jobs run in order, one at a time, with lower priority than the other threads of the process. They throw
  /// nothing.
  template <class Job>
  void post(Job&& job) {
    ++posted_;
    try {
      boost::asio::post(*context_, [this, job = std::forward<Job>(job)]() mutable {
        job();
        ++ended_;
      });
    } catch (...) {
      --posted_;
      throw;
    }
  }

  /// A sign of life: rises with every job that ends; 0 while there is nothing to do. Any thread.
  std::uint64_t beats() const {
    const std::uint64_t ended = ended_;
    return posted_ == ended ? 0 : ended + 1;
  }

 private:
  std::optional<boost::asio::io_context> context_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;
  std::atomic<std::uint64_t> posted_{0};
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace troupe::http
