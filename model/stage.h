#pragma once
// Brings a step's arrays from the host to where the device's ops read them.
#include <cstddef>
#include <span>

#include "base/status.h"
#include "gpu/buffer.h"
#include "gpu/cpu.h"

namespace troupe::model {

/// What put() gave is good until reset(); so is, for the Cpu, the memory behind it.
template <Device D>
class Stage {
 public:
  /// `bytes`: everything that is put between two resets, each piece rounded up by aligned_bytes().
  static Result<Stage> make(D& device, std::size_t bytes) {
    Stage stage(device);
    Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "step inputs");
    if (!memory) return memory.status();
    stage.memory_ = std::move(*memory);
    stage.arena_ = Arena(stage.memory_.view());
    return stage;
  }

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

/// The Cpu's ops read the host's arrays where they are.
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
