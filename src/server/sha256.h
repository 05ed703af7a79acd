// server/sha256.h: SHA-256 (FIPS 180-4), to name the holder of a key without keeping the key. Pure: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem {

std::array<uint8_t, 32> sha256(std::string_view text);

}  // namespace tandem
