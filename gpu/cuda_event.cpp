#include "gpu/cuda_event.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"

namespace troupe {

CudaEvent::CudaEvent(Timing timing) {
  TROUPE_CUDA(cudaEventCreateWithFlags(
      &event_, timing == Timing::on ? cudaEventDefault : unsigned{cudaEventDisableTiming}));
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void CudaEvent::record(Cuda& device) { record(device.stream()); }

void CudaEvent::record(CUstream_st* stream) { TROUPE_CUDA(cudaEventRecord(event_, stream)); }

void CudaEvent::delay(CUstream_st* stream) const { TROUPE_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }

bool CudaEvent::passed() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  cuda::check(error, "cudaEventQuery", __FILE__, __LINE__);
  return true;
}

void CudaEvent::wait() const { TROUPE_CUDA(cudaEventSynchronize(event_)); }

double CudaEvent::milliseconds_since(const CudaEvent& start) const {
  float elapsed = 0;
  TROUPE_CUDA(cudaEventElapsedTime(&elapsed, start.event_, event_));
  return static_cast<double>(elapsed);
}

}  // namespace troupe
