// tests/train_kernels/emulation/kernel_emulator.cpp: the threads of a block as contexts that hand the processor on.
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "train/cuda/launch.cuh"

namespace tandem::train::cuda {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kMostSharedBytes = 227 * 1024;  // of a block on Hopper

// Threads that wait for each other, counted; the last to come lets all go on.
struct Barrier {
  int members = 0;
  int waiting = 0;
  uint64_t passed = 0;

  void leave() {  // a thread that ended is waited for no more
    --members;
    release();
  }
  void release() {
    if (waiting == 0 || waiting < members) return;
    waiting = 0;
    ++passed;
  }
};

struct Thread {
  ucontext_t context = {};
  dim3 index;
  bool ended = false;
};

struct Warp {
  Barrier barrier;
  float lanes[kWarp] = {};
};

struct Machine {
  std::mutex turn;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<char> stacks;
  std::vector<Warp> warps;
  Barrier block_barrier;
  ucontext_t scheduler = {};
  Thread* running = nullptr;
  const std::function<void()>* body = nullptr;
  dim3 block, block_extent, grid_extent;
  std::vector<float4> shared = std::vector<float4>(kMostSharedBytes / sizeof(float4));
};

// The emulated chip: kernels reach it from free functions, as they reach the real one.
Machine& machine() {
  static Machine instance;
  return instance;
}

Warp& warp_of(const Thread& thread) { return machine().warps[thread.index.x / kWarp]; }

void wait_at(Barrier& barrier) {
  const uint64_t before = barrier.passed;
  ++barrier.waiting;
  barrier.release();
  while (barrier.passed == before) swapcontext(&machine().running->context, &machine().scheduler);
}

void thread_main() {
  Machine& chip = machine();
  (*chip.body)();
  chip.running->ended = true;
  warp_of(*chip.running).barrier.leave();
  chip.block_barrier.leave();
  swapcontext(&chip.running->context, &chip.scheduler);
}

void run_block(int count) {
  Machine& chip = machine();
  const float poison = NAN;
  std::fill(chip.shared.begin(), chip.shared.end(), float4{poison, poison, poison, poison});
  chip.warps.assign(static_cast<size_t>((count + kWarp - 1) / kWarp), Warp{});
  chip.block_barrier = {count, 0, 0};
  for (int i = 0; i < count; ++i) {
    Thread& thread = *chip.threads[static_cast<size_t>(i)];
    thread.index = dim3(static_cast<unsigned>(i));
    thread.ended = false;
    ++warp_of(thread).barrier.members;
    TANDEM_CHECK(getcontext(&thread.context) == 0, "a context of this thread");
    thread.context.uc_stack.ss_sp = chip.stacks.data() + kStackBytes * static_cast<size_t>(i);
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, thread_main, 0);
  }
  while (chip.block_barrier.members > 0) {
    for (int i = 0; i < count; ++i) {
      chip.running = chip.threads[static_cast<size_t>(i)].get();
      if (!chip.running->ended) swapcontext(&chip.scheduler, &chip.running->context);
    }
  }
}

}  // namespace

const dim3& emulated_thread() { return machine().running->index; }
const dim3& emulated_block() { return machine().block; }
const dim3& emulated_block_extent() { return machine().block_extent; }
const dim3& emulated_grid_extent() { return machine().grid_extent; }
float4* shared_memory() { return machine().shared.data(); }
void emulated_block_barrier() { wait_at(machine().block_barrier); }
void emulated_warp_barrier() { wait_at(warp_of(*machine().running).barrier); }

float emulated_shuffle(float value, int from, bool exclusive_or) {
  const int lane = static_cast<int>(emulated_thread().x) % kWarp;
  warp_of(*machine().running).lanes[lane] = value;
  emulated_warp_barrier();  // every lane's value is there
  const float found = warp_of(*machine().running).lanes[exclusive_or ? lane ^ from : from];
  emulated_warp_barrier();  // and has been read
  return found;
}

int emulated_launch(const std::function<void()>& body, dim3 grid, int threads, size_t shared_bytes) {
  if (shared_bytes > kMostSharedBytes) return 1;
  Machine& chip = machine();
  const std::lock_guard<std::mutex> turn(chip.turn);
  chip.body = &body;
  chip.grid_extent = grid;
  chip.block_extent = dim3(static_cast<unsigned>(threads));
  chip.stacks.resize(std::max(chip.stacks.size(), kStackBytes * static_cast<size_t>(threads)));
  while (chip.threads.size() < static_cast<size_t>(threads)) chip.threads.push_back(std::make_unique<Thread>());
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      chip.block = dim3(x, y);
      run_block(threads);
    }
  }
  return 0;
}

}  // namespace tandem::train::cuda
