#pragma once
// What a thread does between two polls of a word that another thread writes.

namespace troupe {

/// Tells the CPU that this is a spin loop: saves power and leaves the core's other hardware thread more of
/// it. Takes 10 to 100 ns on x86-64.
void pause_cpu();

}  // namespace troupe
