#pragma once
// Who made the processor: what it does by itself, such as fetching ahead, goes with that.

namespace troupe {

enum class CpuVendor { intel, other };

/// Asked of the CPU once per process.
CpuVendor cpu_vendor();
/// Asks the CPU: isa_x86.cpp or isa_generic.cpp.
CpuVendor detect_cpu_vendor();

}  // namespace troupe
