#include "model/checkpoint/read_ahead.h"

namespace troupe::model {

ReadAhead::ReadAhead(const TensorMap& map, std::uint64_t bytes_ahead)
    : map_(map), bytes_ahead_(bytes_ahead), limit_(bytes_ahead), thread_([this] { run(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ReadAhead::reached(std::size_t source) {
  {
    const std::scoped_lock lock(mutex_);
    for (; reached_ < source; ++reached_) bytes_before_ += map_.sources[reached_].bytes();
    limit_ = bytes_before_ + bytes_ahead_;
  }
  changed_.notify_one();
}

std::size_t ReadAhead::asked() const {
  const std::scoped_lock lock(mutex_);
  return asked_;
}

void ReadAhead::run() {
  std::uint64_t bytes = 0;  // of the sources asked for
  for (const WeightSource& source : map_.sources) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || bytes < limit_; });
      if (stop_) return;
    }
    source.tensor->file->will_need(source.offset(), source.span());
    bytes += source.bytes();  // parts of one tensor each count their own
    const std::scoped_lock lock(mutex_);
    ++asked_;
  }
}

}  // namespace troupe::model
