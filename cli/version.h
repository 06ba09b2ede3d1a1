#pragma once

namespace troupe::cli {

/// "0.1.0".
const char* version();
/// The GPUs that it has code for, as nvcc names them, and the CUDA toolkit: "90a, CUDA 13.0"; "none".
const char* gpu_code();
/// The same as code_for() in gpu/architectures.h takes it, "90a"; empty without CUDA.
const char* gpu_architectures();
/// The libraries it was built with, and their versions.
const char* libraries();

}  // namespace troupe::cli
