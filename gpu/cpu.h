#pragma once
// The CPU as a device: memory with huge pages, a pinned thread pool, one instruction set.
//
// One thread at a time calls into it; that thread is thread 0 of the pool. Ops are complete when run()
// returns, so sync() has nothing to wait for.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/isa.h"
#include "gpu/thread_pool.h"

namespace troupe {

struct CpuOptions {
  int threads = 0;                ///< 0: one for each of the cores
  std::vector<int> cores{};       ///< to run on; empty: each physical core that the process may use
  bool pin = true;                ///< each thread to its core; the caller of the constructor too
  Isa isa = cpu_features().best;  ///< another one has to be usable()
};

class Cpu {
 public:
  static constexpr const char* name = "cpu";
  static bool available() { return true; }

  explicit Cpu(const CpuOptions& options = {});
  ~Cpu();
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;

  /// Zeroed; aligned to 64 bytes, from 2 MiB on to 2 MiB with a hint for huge pages. Pages become
  /// resident when first touched. Null when the address space or the memory limit refuses.
  void* alloc(std::size_t bytes);
  /// Accepts memory of alloc(), or null.
  void free(void* memory);

  void upload(void* to, const void* from, std::size_t bytes);
  void download(void* to, const void* from, std::size_t bytes);
  void sync() {}

  /// "cpu: avx512_bf16, 2 threads".
  std::string describe() const;

  Isa isa() const { return isa_; }
  ThreadPool& pool() { return *pool_; }

  /// Working memory of the op that runs now, 64-byte aligned; its contents last until the next call.
  /// Grows to the largest demand so far and stays: the first steps of a shape pay, later ones do not.
  void* scratch(std::size_t bytes);
  /// Gives each thread of the pool at least `bytes` of working memory of its own: lane(i) for thread i.
  /// Contents and growth as scratch(). Called before the pool's threads run.
  void reserve_lanes(std::size_t bytes);
  void* lane(int i) { return lanes_[static_cast<std::size_t>(i)].memory; }
  /// All of the above together, for the memory summary.
  std::size_t scratch_bytes() const;

 private:
  struct Region {
    void* memory = nullptr;
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  struct Growing {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  void* grow(Growing& piece, std::size_t bytes);

  const Isa isa_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Region> regions_;
  Growing scratch_;
  std::vector<Growing> lanes_;
};
static_assert(Device<Cpu>);

}  // namespace troupe
