#include "kernels/simd/scratch.h"

namespace tandem::simd {

Scratch::Scratch(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
Scratch::~Scratch() { arena_.release(mark_); }
float* Scratch::floats(int64_t count) { return arena_.alloc<float>(count).data(); }
int32_t* Scratch::ints(int64_t count) { return arena_.alloc<int32_t>(count).data(); }
void* Scratch::bytes(int64_t count) { return arena_.alloc<std::byte>(count).data(); }

}  // namespace tandem::simd
