#pragma once
// NCCL, opened at run time: sums and collections over GPUs by whatever links them. Nothing of it is needed to
// build.
#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "gpu/cuda.h"
#include "gpu/nccl_library.h"

namespace troupe {

/// "2.28.9". unavailable if the library cannot be opened or is too old; the message is a clause without an
/// end.
Result<std::string> nccl_version(const char* library = kNcclLibrary);

/// How NCCL works in this process, where the environment says nothing else: between processes of this
/// machine, with every connection made at the start. `host`: not empty, and another one for each rank, where
/// ranks share a GPU; NCCL takes them for ranks on several machines then. Before any communicator.
void set_nccl_defaults(const std::string& host);

/// One rank's communicator, for one thread. Calls run on the device's stream, in graphs too. Throws
/// CudaError.
///
/// A call whose other ranks do not come occupies the GPU until the process ends: there is no way to end it
/// while the graph or the stream has more calls behind it.
class NcclGroup {
 public:
  static NcclId make_id();

  /// Begins to look for the other ranks and returns at once.
  NcclGroup(Cuda& device, const NcclId& id, int rank, int ranks);
  /// The device must be idle, and every graph that has captured a call must be gone. If it is not settled(),
  /// its thread and its memory stay until the process ends.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// True once all ranks have found each other. Throws if they have failed to.
  bool ready() const;
  /// True once they have, or have failed to.
  bool settled() const;

  /// out[i] = the sum over the ranks of in[i]; `in` may be `out`. All ranks get the same bits, and the same
  /// ones every time.
  void sum(const float* in, float* out, std::size_t count);
  /// `out` gets the `count` numbers of rank 0, those of rank 1, and so on.
  void gather(const float* in, float* out, std::size_t count);

 private:
  struct Meeting;
  Cuda& device_;
  std::shared_ptr<Meeting> meeting_;  // with the thread that looks for the others
};

}  // namespace troupe
