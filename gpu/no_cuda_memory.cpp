// Graphs, events and memory of a build without CUDA: there are none, and nobody who has no Cuda asks.
#include "gpu/cuda_copy_stream.h"
#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"
#include "gpu/pinned.h"
#include "gpu/reserved_memory.h"

namespace troupe {
namespace {

[[noreturn]] void absent() { throw CudaError(cuda_usable().message); }

}  // namespace

CudaEvent::CudaEvent(Timing) { absent(); }
CudaEvent::~CudaEvent() = default;
void CudaEvent::record(Cuda&) { absent(); }
void CudaEvent::record(CUstream_st*) { absent(); }
void CudaEvent::delay(CUstream_st*) const { absent(); }
bool CudaEvent::passed() const { absent(); }
void CudaEvent::wait() const { absent(); }
double CudaEvent::milliseconds_since(const CudaEvent&) const { absent(); }

CudaGraph::~CudaGraph() = default;
CudaGraph CudaGraph::capture(Cuda&, const std::function<void()>&) { absent(); }
void CudaGraph::launch(Cuda&) const { absent(); }

PinnedMemory::PinnedMemory(std::size_t, Contents) { absent(); }

void use_gpu(int) { absent(); }
std::string pci_address_of(int) { absent(); }
CudaCopyStream::CudaCopyStream(Cuda&) { absent(); }
CudaCopyStream::~CudaCopyStream() = default;
void CudaCopyStream::copy(void*, const void*, std::size_t) { absent(); }
void CudaCopyStream::sync() { absent(); }
StreamMemory::StreamMemory(CudaCopyStream&, std::size_t) : stream_(nullptr) { absent(); }
StreamMemory::~StreamMemory() = default;
PinnedMemory::~PinnedMemory() = default;

PinnedMapping::PinnedMapping(std::span<std::byte>) { absent(); }
PinnedMapping::~PinnedMapping() = default;

ReservedMemory::ReservedMemory(Cuda&, std::size_t, Sharing) { absent(); }
ReservedMemory::~ReservedMemory() = default;
bool ReservedMemory::map(std::size_t) { absent(); }
void ReservedMemory::unmap() { absent(); }
OwnedFd ReservedMemory::share() const { absent(); }
Result<ImportedMemory> ImportedMemory::open(Cuda&, int, std::size_t) { return cuda_usable(); }
ImportedMemory::~ImportedMemory() = default;

}  // namespace troupe
