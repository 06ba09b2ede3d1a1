#pragma once
// What tests ask the emulation of AMX: emulated_amx_x86.cpp, or emulated_amx_generic.cpp where there is none.

namespace troupe::kernels {

/// True if the calling thread loaded shapes of tiles and did not release them.
bool has_shapes();
/// How often the calling thread loaded shapes.
int shapes_loaded();

/// True: from now on products have a wrong sum, on all threads.
void spoil_products(bool wrong);

/// One product of tiles: sums (rows, 16) += operands (rows, inputs) · weights, which lie as a side of a panel
/// does. inputs is even and at most 32, rows at most 16.
void add_bf16_product(float* sums, const unsigned short* operands, const unsigned short* weights, int rows,
                      int inputs);

}  // namespace troupe::kernels
