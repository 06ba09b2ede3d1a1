#include "gpu/reserved_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

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
};

const Driver& driver() {
  static const Driver found;
  return found;
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw CudaError(std::string(what) + " failed with driver error " +
                    std::to_string(static_cast<int>(result)));
  }
}

CUmemAllocationProp on_device(const Cuda& device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal();
  return properties;
}

std::size_t rounded_up(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace

ReservedMemory::ReservedMemory(Cuda& device, std::size_t bytes) : device_(&device) {
  const CUmemAllocationProp properties = on_device(device);
  check(driver().granularity(&granule_, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  const std::size_t wanted = rounded_up(bytes, granule_);
  CUdeviceptr address = 0;
  check(driver().reserve(&address, wanted, 0, 0, 0), "cuMemAddressReserve");
  address_ = address;
  reserved_ = wanted;
}

ReservedMemory::~ReservedMemory() {
  if (address_ == 0) return;
  cudaStreamSynchronize(device_->stream());
  for (const Piece& piece : pieces_) {
    driver().unmap(address_ + piece.at, piece.bytes);
    driver().release(piece.handle);
  }
  driver().unreserve(address_, reserved_);
}

bool ReservedMemory::map(std::size_t bytes) {
  if (bytes <= mapped_) return true;
  const Piece piece{0, mapped_, rounded_up(bytes, granule_) - mapped_};
  if (piece.at + piece.bytes > reserved_) return false;
  const CUmemAllocationProp properties = on_device(*device_);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = driver().create(&handle, piece.bytes, &properties, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check(created, "cuMemCreate");
  pieces_.push_back({handle, piece.at, piece.bytes});
  check(driver().map(address_ + piece.at, piece.bytes, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver().set_access(address_ + piece.at, piece.bytes, &access, 1), "cuMemSetAccess");
  mapped_ += piece.bytes;
  TROUPE_CUDA(
      cudaMemsetAsync(reinterpret_cast<void*>(address_ + piece.at), 0, piece.bytes, device_->stream()));
  return true;
}

}  // namespace troupe
