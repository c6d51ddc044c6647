// Inline PTX: the instructions that kernels use and C++ cannot express.
//
// Operands of matrix instructions, g = lane / 4, t = lane % 4, as PTX's manual gives them. A tensor core's sum is taken in
// double precision here and rounded once; a real one truncates.
#include <stdlib.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace cuda_on_cpu {
namespace {

struct Word {
    std::string text;
    int operand = -1; // the number in %0
};

struct Instruction {
    std::string name; // of the operation with its modifiers
    std::vector<std::vector<Word>> groups; // operands: a list {..} or a single one
};

std::string trimmed(const std::string &text) {
    const size_t first = text.find_first_not_of(" \t\n;"), last = text.find_last_not_of(" \t\n;");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

Instruction parse(const char *written) {
    const std::string text = trimmed(written);
    Instruction parsed;
    const size_t space = text.find_first_of(" \t\n");
    parsed.name = text.substr(0, space);
    if (space == std::string::npos) return parsed;
    std::vector<Word> group;
    std::string operand;
    bool inside = false;
    const auto end_operand = [&] {
        if (const std::string word = trimmed(operand); !word.empty()) {
            group.push_back({word, word[0] == '%' ? atoi(word.c_str() + 1) : -1});
        }
        operand.clear();
    };
    const auto end_group = [&] {
        end_operand();
        if (!group.empty()) parsed.groups.push_back(group);
        group.clear();
    };
    for (const char c : text.substr(space)) {
        if (c == '{') {
            inside = true;
        } else if (c == '}') {
            inside = false;
            end_group();
        } else if (c == ',') {
            if (inside) end_operand();
            else end_group();
        } else if (c != '[' && c != ']') {
            operand += c;
        }
    }
    end_group();
    return parsed;
}

const Instruction &parsed(const char *text) {
    thread_local std::unordered_map<const char *, Instruction> known;
    const auto found = known.find(text);
    return found != known.end() ? found->second : known.emplace(text, parse(text)).first->second;
}

// The operands of one execution.
struct Registers {
    const Instruction &instruction;
    const Operand *operands;
    size_t count;

    const Word &word(size_t group, size_t at = 0) const {
        if (group >= instruction.groups.size() || at >= instruction.groups[group].size()) {
            fail("%s has fewer operands than expected", instruction.name.c_str());
        }
        return instruction.groups[group][at];
    }
    size_t size(size_t group) const { return instruction.groups.at(group).size(); }
    const Operand *operand(size_t group, size_t at) const {
        const auto &[text, number] = word(group, at);
        if (number < 0) return nullptr;
        const auto index = size_t(number);
        if (index >= count) fail("%s names operand %s, which does not exist", instruction.name.c_str(), text.c_str());
        return &operands[index];
    }
    template <typename T> T get(size_t group, size_t at = 0) const {
        T value{};
        const Operand *from = operand(group, at);
        if (from == nullptr) {
            const std::string &text = word(group, at).text;
            if (text.rfind("0f", 0) == 0) {
                const auto bits = uint32_t(strtoul(text.c_str() + 2, nullptr, 16));
                memcpy(&value, &bits, std::min(sizeof value, sizeof bits));
            } else {
                const long long bits = strtoll(text.c_str(), nullptr, 0);
                memcpy(&value, &bits, sizeof value);
            }
            return value;
        }
        memcpy(&value, from->to != nullptr ? from->to : &from->bits, sizeof value);
        return value;
    }
    template <typename T> void set(size_t group, size_t at, T value) const {
        const Operand *to = operand(group, at);
        if (to == nullptr || to->to == nullptr) fail("%s writes to an input", instruction.name.c_str());
        memcpy(to->to, &value, sizeof value);
    }
};

bool contains(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }
bool begins(const std::string &text, const char *part) { return text.rfind(part, 0) == 0; }

enum class Type { Half, Bfloat, Tf32 };

struct Mma {
    uint32_t a[4], b[2];
    float c[4], d[4];
};

float element(uint32_t word, int index, Type type) {
    if (type == Type::Tf32) return __uint_as_float(word & 0xffffe000u); // the unit ignores the other bits
    const auto bits = uint16_t(word >> (16 * index));
    return type == Type::Half ? float(cuda_on_cpu_bits<__half>(bits)) : float(cuda_on_cpu_bits<__nv_bfloat16>(bits));
}

void multiply(Mma *const (&lanes)[32], Type type, int terms) {
    const int in_word = type == Type::Tf32 ? 1 : 2;
    for (Mma *lane : lanes) {
        if (lane == nullptr) fail("a lane is missing in mma");
    }
    double a[16][16], b[8][16]; // rows of A, columns of B
    for (int i = 0; i < 32 * terms / 4; ++i) {
        const int lane = i / (terms / 4), at = i % (terms / 4), word = at / in_word, half = at % in_word;
        const int g = lane / 4, term = (word * 4 + lane % 4) * in_word + half;
        for (int part : {0, 1}) a[g + 8 * part][term] = element(lanes[lane]->a[2 * word + part], half, type);
        b[g][term] = element(lanes[lane]->b[word], half, type);
    }
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            Mma &to = *lanes[row % 8 * 4 + column / 2];
            const int e = row / 8 * 2 + column % 2;
            double sum = to.c[e];
            for (int term = 0; term < terms; ++term) sum += a[row][term] * b[column][term];
            to.d[e] = float(sum);
        }
    }
}

void mma(const Registers &r) {
    Mma mine{};
    for (size_t i = 0; i < r.size(1); ++i) mine.a[i] = r.get<uint32_t>(1, i);
    for (size_t i = 0; i < r.size(2); ++i) mine.b[i] = r.get<uint32_t>(2, i);
    for (size_t i = 0; i < 4; ++i) mine.c[i] = r.get<float>(3, r.size(3) == 4 ? i : 0);
    const std::string &name = r.instruction.name;
    warp(name.c_str(), mine, [&](Mma *const(&lanes)[32]) {
        const Type type = contains(name, ".tf32") ? Type::Tf32 : contains(name, ".bf16") ? Type::Bfloat : Type::Half;
        if (!contains(name, ".m16n8k") || !contains(name, ".row.col.f32.")) fail("%s is not emulated", name.c_str());
        multiply(lanes, type, atoi(name.c_str() + name.find(".m16n8k") + 7));
    });
    for (size_t i = 0; i < 4; ++i) r.set(0, i, mine.d[i]);
}

// movmatrix: 8 x 8 halves, row g in lanes 4g .. 4g + 3.
struct Halves {
    uint32_t from, to;
};

uint16_t half_of(uint32_t word, int index) { return uint16_t(word >> (16 * (index % 2))); }

void transpose(const Registers &r) {
    Halves mine{r.get<uint32_t>(1), 0};
    warp("movmatrix", mine, [](Halves *const(&lanes)[32]) {
        for (int i = 0; i < 32; ++i) {
            const int row = i / 4, column = i % 4 * 2;
            const auto at = [&](int c) { return uint32_t(half_of(lanes[c * 4 + row / 2]->from, row)); };
            lanes[i]->to = at(column) | at(column + 1) << 16;
        }
    });
    r.set(0, 0, mine.to);
}

struct Matrices {
    uint32_t address, words[4];
};

// Lanes 8i .. 8i + 7 give the addresses of the rows of matrix i.
void load_matrices(const Registers &r) {
    const bool transposed = contains(r.instruction.name, ".trans");
    const int count = int(r.size(0));
    Matrices mine{r.get<uint32_t>(1), {}};
    warp(r.instruction.name.c_str(), mine, [&](Matrices *const(&lanes)[32]) {
        for (int m = 0; m < count; ++m) {
            const uint16_t *rows[8];
            for (int i = 0; i < 8; ++i) {
                if (lanes[8 * m + i]->address % 16 != 0) fail("a row's address in ldmatrix is not aligned to 16 bytes");
                rows[i] = static_cast<const uint16_t *>(from_shared(lanes[8 * m + i]->address));
            }
            for (int i = 0; i < 32; ++i) {
                const int g = i / 4, t = i % 4 * 2;
                const uint32_t low = transposed ? rows[t][g] : rows[g][t], high = transposed ? rows[t + 1][g] : rows[g][t + 1];
                lanes[i]->words[m] = low | high << 16;
            }
        }
    });
    for (int m = 0; m < count; ++m) r.set(0, size_t(m), mine.words[m]);
}

// cp.async, which is complete at once here.
void copy(const Registers &r) {
    const int bytes = r.get<int>(2), given = r.instruction.groups.size() > 3 ? r.get<int>(3) : bytes;
    const auto address = r.get<uint32_t>(0);
    const auto *from = r.get<const char *>(1);
    if (address % unsigned(bytes) != 0) fail("cp.async writes %d bytes to an address that is not aligned to them", bytes);
    if (given > 0 && reinterpret_cast<uintptr_t>(from) % unsigned(bytes) != 0) {
        fail("cp.async reads %d bytes from an address that is not aligned to them", bytes);
    }
    auto *to = static_cast<char *>(from_shared(address));
    memset(to, 0, size_t(bytes));
    if (given > 0) memcpy(to, from, size_t(given));
}

uint32_t rounded_to_tf32(float v) {
    const uint32_t bits = __float_as_uint(v);
    return isfinite(v) ? (bits + 0x1000) & 0xffffe000u : bits;
}

} // namespace

void execute(const char *text, std::initializer_list<Operand> operands) {
    const Instruction &instruction = parsed(text);
    const std::string &name = instruction.name;
    const Registers r{instruction, operands.begin(), operands.size()};
    if (name.empty() || begins(name, "cp.async.commit_group") || begins(name, "cp.async.wait") || begins(name, "fence.") ||
        begins(name, "prefetch") || begins(name, "griddepcontrol")) {
        return; // each copy is complete, and each launch
    }
    if (begins(name, "mma.sync")) return mma(r);
    if (begins(name, "ldmatrix.sync")) return load_matrices(r);
    if (begins(name, "movmatrix.sync")) return transpose(r);
    if (begins(name, "cp.async.ca") || begins(name, "cp.async.cg")) return copy(r);
    if (begins(name, "bar.sync") || begins(name, "barrier.sync")) {
        return barrier(r.get<int>(0), instruction.groups.size() > 1 ? r.get<unsigned>(1) : 0);
    }
    if (begins(name, "cvt.rna.tf32.f32")) return r.set(0, 0, rounded_to_tf32(r.get<float>(1)));
    if (begins(name, "max.NaN.f32")) {
        const float a = r.get<float>(1), b = r.get<float>(2);
        return r.set(0, 0, a != a || b != b ? __uint_as_float(0x7fffffffu) : a < b ? b : a);
    }
    if (begins(name, "ex2.approx")) return r.set(0, 0, exp2f(r.get<float>(1)));
    if (begins(name, "mov.u32") && r.word(1).text == "%%laneid") return r.set(0, 0, unsigned(lane()));
    if (begins(name, "ld.global") && contains(name, ".v4.f32")) {
        const auto *from = r.get<const float *>(1);
        for (size_t i = 0; i < 4; ++i) r.set(0, i, from[i]);
        return;
    }
    fail("the instruction %s is not emulated; add it to ptx.cpp", name.c_str());
}

} // namespace cuda_on_cpu
