#pragma once
// Copies a step's arrays from the host to where the device's ops read them.
#include <cstddef>
#include <span>

#include "base/status.h"
#include "gpu/buffer.h"
#include "gpu/cpu.h"

namespace troupe::model {

/// Pointers from put() are valid until reset(). On the Cpu they are the caller's own, so the caller must keep
/// that memory until then.
template <Device D>
class Stage {
 public:
  /// `bytes`: most bytes put between two resets, each array rounded up by aligned_bytes().
  static Result<Stage> make(D& device, std::size_t bytes) {
    Stage stage(device);
    Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "step inputs");
    if (!memory) return memory.status();
    stage.memory_ = std::move(*memory);
    stage.arena_ = Arena(stage.memory_.view());
    return stage;
  }

  /// Copies `count` elements to the device; null if there are none.
  template <class T>
  const T* put(const T* from, std::size_t count) {
    if (count == 0) return nullptr;
    T* to = arena_.take<T>(count);
    device_->upload(to, from, count * sizeof(T));
    return to;
  }

  void reset() { arena_.reset(); }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  explicit Stage(D& device) : device_(&device) {}
  D* device_;
  Buffer<D> memory_;
  Arena arena_;
};

/// On the Cpu nothing is copied: ops read the host's arrays in place.
template <>
class Stage<Cpu> {
 public:
  static Result<Stage> make(Cpu&, std::size_t) { return Stage(); }

  template <class T>
  const T* put(const T* from, std::size_t) {
    return from;
  }

  void reset() {}
  std::size_t bytes() const { return 0; }
};

}  // namespace troupe::model
