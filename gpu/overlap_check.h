#pragma once
// Checks what kernels that overlap rely on. kernels/cuda/launch.cuh defines the words and the rules; debug
// builds report every launch here. No CUDA in it, so that the rules are tested without a GPU.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// What a launch declares about its kernel. A null address: the kernel does no such thing.
struct Overlap {
  /// The kernel calls let_next_start() only after wait_for_previous().
  bool holds_next = false;
  /// Read before wait_for_previous(): constant while the step runs.
  const void* reads_constant = nullptr;
  /// Read before wait_for_previous(): settled.
  const void* reads_settled = nullptr;
  /// Written, and read by a later kernel that declares it as settled.
  const void* writes_settled = nullptr;
};

/// Follows the kernels of one stream in the order of their launches. One thread.
class OverlapCheck {
 public:
  /// Declares memory that kernels of a step write: nothing in it is constant, and what is settled in it has a
  /// known writer. The same address again replaces the range; 0 bytes remove it.
  void set_step_memory(const void* begin, std::size_t bytes);

  /// Takes the launch of the next kernel. Returns an empty string, or a sentence that names the declaration
  /// that does not hold.
  std::string launched(const Overlap& overlap);

 private:
  bool in_step_memory(const void* address) const;

  std::map<const std::byte*, std::size_t> step_memory_;  // bytes by first address
  std::map<const void*, std::uint64_t> writers_;         // number of the last kernel that wrote there
  std::uint64_t count_ = 0;                              // kernels so far
  std::uint64_t last_holder_ = 0;                        // number of the last one with holds_next; 0: none
};

}  // namespace troupe
