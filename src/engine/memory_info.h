// engine/memory_info.h: what the operating system says about memory.
#pragma once

#include <cstdint>

namespace tandem {

int64_t available_memory_bytes();  // MemAvailable; 0 when unknown
int64_t peak_resident_bytes();     // of this process

}  // namespace tandem
