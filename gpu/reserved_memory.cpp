#include "gpu/reserved_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "gpu/cuda_check.h"

namespace troupe {
namespace {

// The driver's functions are looked up at run time: a program linked against the driver would not start on a
// machine without one.
template <class F>
F driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kVersion = 12000;
  TROUPE_CUDA(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result));
  if (found == nullptr) throw CudaError(std::string("the NVIDIA driver has no ") + name);
  return reinterpret_cast<F>(found);
}

struct Driver {
  decltype(&cuMemAddressReserve) reserve = driver_function<decltype(reserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) unreserve = driver_function<decltype(unreserve)>("cuMemAddressFree");
  decltype(&cuMemCreate) create = driver_function<decltype(create)>("cuMemCreate");
  decltype(&cuMemRelease) release = driver_function<decltype(release)>("cuMemRelease");
  decltype(&cuMemMap) map = driver_function<decltype(map)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = driver_function<decltype(unmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = driver_function<decltype(set_access)>("cuMemSetAccess");
  decltype(&cuMemGetAllocationGranularity) granularity =
      driver_function<decltype(granularity)>("cuMemGetAllocationGranularity");
  decltype(&cuMemExportToShareableHandle) to_shared =
      driver_function<decltype(to_shared)>("cuMemExportToShareableHandle");
  decltype(&cuMemImportFromShareableHandle) from_shared =
      driver_function<decltype(from_shared)>("cuMemImportFromShareableHandle");
};

const Driver& driver() {
  static const Driver found;
  return found;
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    // The runtime's errors have the driver's numbers.
    throw CudaError(std::string(what) + " failed with driver error " +
                    std::to_string(static_cast<int>(result)) + " (" +
                    cudaGetErrorString(static_cast<cudaError_t>(result)) + ")");
  }
}

CUmemAllocationProp on_device(const Cuda& device, ReservedMemory::Sharing sharing) {
  CUmemAllocationProp properties{};
  if (sharing == ReservedMemory::Sharing::on)
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal();
  return properties;
}

std::size_t rounded_up(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

std::size_t granule_of(const CUmemAllocationProp& properties) {
  std::size_t granule = 0;
  check(driver().granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  return granule;
}

CUresult set_access(std::uint64_t address, std::size_t bytes, const CUmemLocation& location,
                    CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = location;
  access.flags = flags;
  return driver().set_access(address, bytes, &access, 1);
}

}  // namespace

ReservedMemory::ReservedMemory(Cuda& device, std::size_t bytes, Sharing sharing)
    : device_(&device), sharing_(sharing), granule_(granule_of(on_device(device, sharing))) {
  const std::size_t wanted = rounded_up(bytes, granule_);
  CUdeviceptr address = 0;
  check(driver().reserve(&address, wanted, 0, 0, 0), "cuMemAddressReserve");
  address_ = address;
  reserved_ = wanted;
}

ReservedMemory::~ReservedMemory() {
  if (address_ == 0) return;
  cudaStreamSynchronize(device_->stream());
  drop_pieces();
  driver().unreserve(address_, reserved_);
}

void ReservedMemory::drop_pieces() {
  for (const Piece& piece : pieces_) {
    driver().unmap(address_ + piece.at, piece.bytes);
    driver().release(piece.handle);
  }
  pieces_.clear();
  mapped_ = 0;
}

void ReservedMemory::unmap() {
  TROUPE_CUDA(cudaStreamSynchronize(device_->stream()));
  drop_pieces();
}

OwnedFd ReservedMemory::share() const {
  TROUPE_CHECK(sharing_ == Sharing::on && pieces_.size() == 1);
  int fd = -1;
  check(driver().to_shared(&fd, pieces_.front().handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  OwnedFd shared(fd);
  TROUPE_CHECK(::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
  return shared;
}

bool ReservedMemory::map(std::size_t bytes) {
  if (bytes <= mapped_) return true;
  const Piece piece{0, mapped_, rounded_up(bytes, granule_) - mapped_};
  if (piece.at + piece.bytes > reserved_) return false;
  const CUmemAllocationProp properties = on_device(*device_, sharing_);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = driver().create(&handle, piece.bytes, &properties, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check(created, "cuMemCreate");
  pieces_.push_back({handle, piece.at, piece.bytes});
  check(driver().map(address_ + piece.at, piece.bytes, 0, handle, 0), "cuMemMap");
  check(set_access(address_ + piece.at, piece.bytes, properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        "cuMemSetAccess");
  mapped_ += piece.bytes;
  TROUPE_CUDA(
      cudaMemsetAsync(reinterpret_cast<void*>(address_ + piece.at), 0, piece.bytes, device_->stream()));
  return true;
}

Result<ImportedMemory> ImportedMemory::open(Cuda& device, int fd, std::size_t bytes) {
  ImportedMemory opened;
  try {
    opened.map(device, fd, bytes);
    // Whether copies work is known before a sequence relies on them.
    std::uint64_t word = 0;
    device.download(&word, opened.data(), sizeof word);
    device.sync();
  } catch (const CudaError& error) {
    (void)cudaGetLastError();  // it is told here, and must not fail a later call
    return failure(Code::unavailable,
                   "GPU " + std::to_string(device.ordinal()) +
                       " of this instance cannot read the memory of the other one's GPU: " + error.what());
  }
  return opened;
}

void ImportedMemory::map(Cuda& device, int fd, std::size_t bytes) {
  const CUmemAllocationProp properties = on_device(device, ReservedMemory::Sharing::on);
  bytes_ = rounded_up(bytes, granule_of(properties));
  CUdeviceptr address = 0;
  check(driver().reserve(&address, bytes_, 0, 0, 0), "cuMemAddressReserve");
  address_ = address;
  CUmemGenericAllocationHandle handle = 0;
  check(driver().from_shared(&handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  const CUresult result = driver().map(address_, bytes_, 0, handle, 0);
  driver().release(handle);  // the mapping keeps the memory
  check(result, "cuMemMap");
  mapped_ = true;
  if (set_access(address_, bytes_, properties.location, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS)
    return;
  // A driver may know no read-only mappings of a peer.
  check(set_access(address_, bytes_, properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        "cuMemSetAccess");
}

ImportedMemory::~ImportedMemory() {
  if (address_ == 0) return;
  if (mapped_) driver().unmap(address_, bytes_);
  driver().unreserve(address_, bytes_);
}

}  // namespace troupe
