#pragma once
// Counts the work of one rendering and throws when a limit is exceeded.
#include <cstddef>
#include <cstdint>

#include "text/template/jinja/error.h"
#include "text/template/jinja/limits.h"

namespace troupe::jinja {

class Budget {
 public:
  explicit Budget(const RenderLimits& limits)
      : steps_(limits.steps), made_bytes_(limits.made_bytes), depth_(limits.depth) {}

  /// Time: one unit is about one expression, one item or 64 bytes touched.
  void step(std::int64_t count = 1) {
    if ((steps_ -= count) < 0) throw LimitError("the chat template ran over its budget of steps");
  }

  /// Time: called before so many bytes are searched, compared or copied.
  void touch(std::size_t bytes) { step(static_cast<std::int64_t>(bytes / 64)); }
  /// The same for bytes that are decoded to characters and written anew.
  void transform(std::size_t bytes) { step(static_cast<std::int64_t>(bytes / 16)); }

  /// Memory: called before the bytes are allocated.
  void made(std::int64_t bytes) {
    if ((made_bytes_ -= bytes) < 0) throw LimitError("the chat template ran over its budget of memory");
  }

  /// Stack: one object lives as long as a nested evaluation runs.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (budget_.depth_ == 0)
        throw LimitError("the chat template is nested too deeply or recurses without end");
      --budget_.depth_;
    }
    ~Level() { ++budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  std::int64_t steps_;
  std::int64_t made_bytes_;
  int depth_;
};

}  // namespace troupe::jinja
