#pragma once
// For threads whose work is long and can wait.

namespace troupe {

/// The calling thread leaves the processor to others of the same machine that have work.
void give_way();

}  // namespace troupe
