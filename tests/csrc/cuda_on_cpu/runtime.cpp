// Fibers, barriers and launches of cuda_runtime.h.
#include "cuda_runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../../csrc/kernels/architecture.h"

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

namespace turbofno {
int compiled_architecture() { return 80; }
} // namespace turbofno

namespace cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int kMaxThreads = 1024, kBarriers = 16;
constexpr size_t kSharedBytes = 227 * 1024, kGuardBytes = 1024;
constexpr size_t kDefaultSharedBytes = 48 * 1024; // more after cudaFuncSetAttribute only

enum class State { Ready, Waiting, Done };

struct Fiber {
    ucontext_t context; // of its first start; jumps afterwards, because they make no system call
    jmp_buf at;
    bool started = false;
    State state = State::Done;
    uint3 thread{};
    const char *waits_for = "";
    // of a collective
    unsigned mask = 0;
    void *operand = nullptr;
};

struct Barrier {
    unsigned arrived = 0, expected = 0;
};

struct Machine {
    std::unique_ptr<Fiber[]> fibers{new Fiber[kMaxThreads]};
    char *stacks = nullptr;
    jmp_buf scheduler;
    int running = 0, threads = 0;
    const std::function<void()> *thread = nullptr;
    Barrier barriers[kBarriers];
    std::string failure;
    cudaError_t error = cudaSuccess;
    std::map<const void *, int> shared_limits;

    Machine() {
        void *memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        stacks = static_cast<char *>(memory);
    }
    ~Machine() { munmap(stacks, kStackBytes * kMaxThreads); }
};

thread_local Machine machine;
thread_local std::string last_failure;
// next to all shared arrays, in the thread-local storage of this library
alignas(1024) thread_local char shared[kSharedBytes + kGuardBytes];

void yield(State state, const char *waits_for) {
    Fiber &self = machine.fibers[machine.running];
    self.state = state;
    self.waits_for = waits_for;
    if (_setjmp(self.at) == 0) _longjmp(machine.scheduler, 1);
}

// A fiber's life: one thread of one block after the other.
void live() {
    while (true) {
        (*machine.thread)();
        yield(State::Done, "");
    }
}

__attribute__((noinline)) void resume(int index) {
    Fiber &fiber = machine.fibers[index];
    machine.running = index;
    threadIdx = fiber.thread;
    if (_setjmp(machine.scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = machine.stacks + kStackBytes * size_t(index);
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, live, 0);
    setcontext(&fiber.context);
}

void run_block(bool falling) {
    Machine &m = machine;
    for (Barrier &each : m.barriers) each = Barrier{};
    for (int i = 0; i < m.threads; ++i) m.fibers[i].state = State::Ready;
    while (m.failure.empty()) {
        bool ran = false;
        int done = 0;
        for (int i = 0; i < m.threads && m.failure.empty(); ++i) {
            const int index = falling ? m.threads - 1 - i : i;
            if (m.fibers[index].state == State::Ready) {
                resume(index);
                ran = true;
            }
            done += m.fibers[index].state == State::Done;
        }
        if (done == m.threads) return;
        if (!ran && m.failure.empty()) {
            const auto *waiting = std::find_if(&m.fibers[0], &m.fibers[m.threads],
                                               [](const Fiber &fiber) { return fiber.state == State::Waiting; });
            m.failure = "thread " + std::to_string(waiting - &m.fibers[0]) + " of block (" + std::to_string(blockIdx.x) +
                        ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ") waits forever at " +
                        waiting->waits_for + "; " + std::to_string(done) + " of " + std::to_string(m.threads) +
                        " threads have ended";
        }
    }
    for (int i = 0; i < m.threads; ++i) m.fibers[i].started = false; // abandoned in their midst
}

bool outside(unsigned value, unsigned most) { return value < 1 || value > most; }

const char *refusal(const cudaLaunchConfig_t &config, const void *kernel) {
    const dim3 &grid = config.gridDim, &block = config.blockDim;
    if (outside(grid.x, 0x7fffffffu) || outside(grid.y, 65535) || outside(grid.z, 65535)) return "the grid's size is invalid";
    if (block.x == 0 || block.y == 0 || block.z == 0 || uint64_t(block.x) * block.y * block.z > kMaxThreads) {
        return "the block's size is invalid";
    }
    const auto limit = machine.shared_limits.find(kernel);
    if (config.dynamicSmemBytes > (limit == machine.shared_limits.end() ? kDefaultSharedBytes : size_t(limit->second))) {
        return "the launch asks for more shared memory than cudaFuncSetAttribute has allowed";
    }
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const cudaLaunchAttribute &each = config.attrs[i];
        if (each.id != cudaLaunchAttributeClusterDimension) continue;
        if (each.val.clusterDim.x * each.val.clusterDim.y * each.val.clusterDim.z > 1) return "clusters are not emulated";
    }
    return nullptr;
}

cudaError_t failed(cudaError_t error, const std::string &words) {
    last_failure = words;
    return machine.error = error;
}

} // namespace

int lane() { return machine.running % 32; }

void fail(const char *format, ...) {
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    machine.failure = words;
    _longjmp(machine.scheduler, 1);
}

void barrier(int index, unsigned threads) {
    static const char *const names[2] = {"__syncthreads", "a named barrier"};
    if (index < 0 || index >= kBarriers) fail("barrier %d does not exist", index);
    Barrier &barrier = machine.barriers[index];
    if (threads == 0) threads = unsigned(machine.threads);
    if (barrier.arrived == 0) barrier.expected = threads;
    if (barrier.expected != threads) fail("threads of barrier %d name %u and %u threads", index, barrier.expected, threads);
    const char *name = names[index != 0];
    if (++barrier.arrived < threads) {
        machine.fibers[machine.running].operand = &barrier;
        return yield(State::Waiting, name);
    }
    barrier.arrived = 0;
    for (int i = 0; i < machine.threads; ++i) {
        Fiber &fiber = machine.fibers[i];
        if (fiber.state == State::Waiting && fiber.operand == &barrier) fiber.state = State::Ready;
    }
}

void collective(unsigned mask, const char *name, void *mine, const std::function<void(void *const (&)[32])> &together) {
    const int first = machine.running / 32 * 32, lanes = min(32, machine.threads - first);
    if (lanes < 32) mask &= (1u << lanes) - 1; // lanes beyond the block do not exist
    Fiber &self = machine.fibers[machine.running];
    if ((mask >> (machine.running - first) & 1) == 0) fail("a lane calls %s with a mask that does not name it", name);
    void *at[32] = {};
    for (int i = 0; i < lanes; ++i) {
        const Fiber &fiber = machine.fibers[first + i];
        if ((mask >> i & 1) == 0) continue;
        at[i] = fiber.operand;
        if (&fiber == &self) {
            at[i] = mine;
        } else if (fiber.state != State::Waiting || fiber.mask != mask || strcmp(fiber.waits_for, name) != 0) {
            self.mask = mask;
            self.operand = mine;
            yield(State::Waiting, name);
            self.mask = 0;
            return;
        }
    }
    together(at);
    for (int i = 0; i < lanes; ++i) {
        if (at[i] != nullptr) machine.fibers[first + i].state = State::Ready;
    }
}

void *from_shared(uint32_t address) {
    const auto base = reinterpret_cast<intptr_t>(&shared);
    return reinterpret_cast<void *>(base + int32_t(address - uint32_t(base)));
}

void *dynamic_shared() { return shared; }

cudaError_t launch(const cudaLaunchConfig_t &config, const void *kernel, const std::function<void()> &thread) {
    Machine &m = machine;
    if (const char *words = refusal(config, kernel)) return failed(cudaErrorInvalidConfiguration, words);
    const dim3 grid = gridDim = config.gridDim, block = blockDim = config.blockDim;
    m.threads = int(block.x * block.y * block.z);
    m.thread = &thread;
    m.failure.clear();
    for (int i = 0; i < m.threads; ++i) {
        const unsigned index = unsigned(i);
        m.fibers[i].thread = {index % block.x, index / block.x % block.y, index / (block.x * block.y)};
    }
    char *const guard = shared + config.dynamicSmemBytes;
    const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; ++i) {
        blockIdx = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / (uint64_t(grid.x) * grid.y))};
        memset(shared, 0xff, config.dynamicSmemBytes + kGuardBytes); // NaN
        run_block(i % 2 == 1);
        if (m.failure.empty() && std::any_of(guard, guard + kGuardBytes, [](char byte) { return byte != char(0xff); })) {
            m.failure = "the kernel writes beyond its dynamic shared memory";
        }
        if (!m.failure.empty()) return failed(cudaErrorLaunchFailure, m.failure);
    }
    return cudaSuccess;
}

} // namespace cuda_on_cpu

cudaError_t cuda_on_cpu_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || size_t(value) > cuda_on_cpu::kSharedBytes) {
        return cuda_on_cpu::failed(cudaErrorInvalidValue, "no block has so much shared memory");
    }
    cuda_on_cpu::machine.shared_limits[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = cuda_on_cpu::machine.error;
    cuda_on_cpu::machine.error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : cuda_on_cpu::last_failure.c_str();
}
