#pragma once
// The bytes of a module of a quantised copy (copy_modules.h).
#include <cstddef>
#include <vector>

#include "base/status.h"
#include "gpu/cpu.h"
#include "kernels/encode_wint2.h"
#include "model/copy_modules.h"

namespace troupe::model {

/// Reads the module's slices and makes its tensors, one after the other. `error` is raised by that of wint2.
/// The error names the tensor: its file cannot be read, or it has a NaN or an infinity.
Result<std::vector<std::byte>> module_bytes(Cpu& device, const CopyModule& module,
                                            kernels::Wint2Error& error);

}  // namespace troupe::model
