#pragma once
// Has the files of a checkpoint read into the page cache ahead of the thread that loads them.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "model/checkpoint/tensor_map.h"

namespace troupe::model {

/// Follows the sources of a map in their order, on a thread of its own, because asking takes time where the
/// pages are there already, and blocks where the disk is busy. The map and its checkpoint outlive it.
class ReadAhead {
 public:
  /// How far ahead of the source that is loaded the files are read.
  static constexpr std::uint64_t kBytesAhead = std::uint64_t{512} << 20;

  explicit ReadAhead(const TensorMap& map, std::uint64_t bytes_ahead = kBytesAhead);
  ~ReadAhead();

  /// The loading thread has come to this source.
  void reached(std::size_t source);

  /// Sources asked for so far.
  std::size_t asked() const;

 private:
  void run();

  const TensorMap& map_;
  const std::uint64_t bytes_ahead_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t limit_;             // bytes of all sources together that may be asked for
  std::uint64_t bytes_before_ = 0;  // of the sources before reached_
  std::size_t reached_ = 0;
  std::size_t asked_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe::model
