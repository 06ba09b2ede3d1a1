#include "model/cuda_executor.h"

namespace troupe::model {
namespace {

Status absent() {
  return failure(Code::unsupported,
                 "not available yet: --device cuda; this build has the devices cpu and echo.");
}

}  // namespace

bool cuda_available() { return false; }

Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles&, const config::Options&) {
  return absent();
}

Result<wire::Capacity> size_cuda(const ModelFiles&, const config::Options&) { return absent(); }

}  // namespace troupe::model
