// SPDX-License-Identifier: Apache-2.0
#include "shim/loaded_object.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "shim/text.hpp"

namespace crossover {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr std::uint32_t kGlobalData = R_X86_64_GLOB_DAT;
constexpr std::uint32_t kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr std::uint32_t kGlobalData = R_AARCH64_GLOB_DAT;
constexpr std::uint32_t kAbsolute = R_AARCH64_ABS64;
#else
#error "name this architecture's relocations by symbol"
#endif

constexpr ElfW(Half) kHiddenVersion = 0x8000;

struct Tables {
    const ElfW(Sym) * symbols = nullptr;
    const char* strings = nullptr;
    const std::uint32_t* gnu_hash = nullptr;
    const std::uint32_t* old_hash = nullptr;
    const ElfW(Half) * versions = nullptr;
    const ElfW(Rela) * plt = nullptr;
    std::size_t plt_bytes = 0;
    const ElfW(Rela) * data = nullptr;
    std::size_t data_bytes = 0;
    std::size_t relative = 0;
};

// glibc makes the addresses absolute when it loads the library, except where that part is
// read-only.
template <class Type>
const Type* at(const LoadedObject& object, ElfW(Addr) value) noexcept {
    return reinterpret_cast<const Type*>(value < object.base ? value + object.base : value);
}

Tables tables_of(const LoadedObject& object) noexcept {
    Tables tables;
    if (object.dynamic == nullptr) {
        return tables;
    }
    for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
        const ElfW(Addr) value = entry->d_un.d_ptr;
        switch (entry->d_tag) {
            case DT_SYMTAB:
                tables.symbols = at<ElfW(Sym)>(object, value);
                break;
            case DT_STRTAB:
                tables.strings = at<char>(object, value);
                break;
            case DT_GNU_HASH:
                tables.gnu_hash = at<std::uint32_t>(object, value);
                break;
            case DT_HASH:
                tables.old_hash = at<std::uint32_t>(object, value);
                break;
            case DT_VERSYM:
                tables.versions = at<ElfW(Half)>(object, value);
                break;
            case DT_JMPREL:
                tables.plt = at<ElfW(Rela)>(object, value);
                break;
            case DT_PLTRELSZ:
                tables.plt_bytes = entry->d_un.d_val;
                break;
            case DT_RELA:
                tables.data = at<ElfW(Rela)>(object, value);
                break;
            case DT_RELASZ:
                tables.data_bytes = entry->d_un.d_val;
                break;
            case DT_RELACOUNT:
                tables.relative = entry->d_un.d_val;
                break;
            default:
                break;
        }
    }
    return tables;
}

std::uint32_t gnu_hash(const char* name) noexcept {
    std::uint32_t hash = 5381;
    for (; *name != '\0'; ++name) {
        hash = hash * 33 + static_cast<unsigned char>(*name);
    }
    return hash;
}

// The symbol's address if it is a function of this name in its default version.
void* if_function(const LoadedObject& object, const Tables& tables, std::uint32_t index,
                  const char* name) noexcept {
    const ElfW(Sym)& symbol = tables.symbols[index];
    if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC ||
        (tables.versions != nullptr && (tables.versions[index] & kHiddenVersion) != 0) ||
        !same_text(tables.strings + symbol.st_name, name)) {
        return nullptr;
    }
    return reinterpret_cast<void*>(object.base + symbol.st_value);
}

void* by_gnu_hash(const LoadedObject& object, const Tables& tables, const char* name) noexcept {
    const std::uint32_t bucket_count = tables.gnu_hash[0];
    const std::uint32_t first = tables.gnu_hash[1];
    const std::uint32_t filter_words = tables.gnu_hash[2];
    const std::uint32_t* buckets =
        tables.gnu_hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
    const std::uint32_t* chain = buckets + bucket_count;
    const std::uint32_t hash = gnu_hash(name);
    std::uint32_t index = bucket_count == 0 ? 0 : buckets[hash % bucket_count];
    if (index < first) {
        return nullptr;
    }
    for (;; ++index) {
        const std::uint32_t entry = chain[index - first];
        if ((entry | 1) == (hash | 1)) {
            if (void* found = if_function(object, tables, index, name)) {
                return found;
            }
        }
        if ((entry & 1) != 0) {
            return nullptr;
        }
    }
}

void* by_old_hash(const LoadedObject& object, const Tables& tables, const char* name) noexcept {
    const std::uint32_t symbol_count = tables.old_hash[1];
    for (std::uint32_t index = 1; index < symbol_count; ++index) {
        if (void* found = if_function(object, tables, index, name)) {
            return found;
        }
    }
    return nullptr;
}

const char* soname_of(const LoadedObject& object) noexcept {
    const Tables tables = tables_of(object);
    if (tables.strings == nullptr) {
        return nullptr;
    }
    for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_SONAME) {
            return tables.strings + entry->d_un.d_val;
        }
    }
    return nullptr;
}

const char* file_of(const char* path) noexcept { return file_of_path(path); }

struct Visitor {
    bool (*visit)(const LoadedObject&, void*);
    void* data;
};

int visit_object(dl_phdr_info* info, std::size_t, void* data) noexcept {
    LoadedObject object;
    object.path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    object.base = info->dlpi_addr;
    object.begin = UINTPTR_MAX;
    for (std::size_t index = 0; index < info->dlpi_phnum; ++index) {
        const ElfW(Phdr)& part = info->dlpi_phdr[index];
        const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_DYNAMIC) {
            object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
        } else if (part.p_type == PT_LOAD) {
            object.begin = begin < object.begin ? begin : object.begin;
            object.end = begin + part.p_memsz > object.end ? begin + part.p_memsz : object.end;
        }
    }
    object.soname = soname_of(object);
    const auto* visitor = static_cast<const Visitor*>(data);
    return visitor->visit(object, visitor->data) ? 1 : 0;
}

using IterateFunction = int (*)(int (*)(dl_phdr_info*, std::size_t, void*), void*);

// The C library's own dl_iterate_phdr: a sanitizer's in its place looks symbols up while it starts,
// by our dlsym, and cannot yet be called then. The C library has been there from the start and
// stays, so the loader's list is whole up to it.
IterateFunction c_library_iterate() noexcept {
    static std::atomic<IterateFunction> known{nullptr};
    IterateFunction function = known.load(std::memory_order_acquire);
    for (const link_map* map = _r_debug.r_map; function == nullptr && map != nullptr;
         map = map->l_next) {
        LoadedObject object;
        object.path = map->l_name == nullptr ? "" : map->l_name;
        object.base = map->l_addr;
        object.dynamic = map->l_ld;
        object.soname = soname_of(object);
        if (object.goes_by("libc.so.6")) {
            function =
                reinterpret_cast<IterateFunction>(defined_function(object, "dl_iterate_phdr"));
            break;
        }
    }
    function = function == nullptr ? &::dl_iterate_phdr : function;
    known.store(function, std::memory_order_release);
    return function;
}

void visit_references(const LoadedObject& object, const Tables& tables, const ElfW(Rela) * first,
                      std::size_t count, void (*visit)(const char*, const void*, void*),
                      void* data) noexcept {
    for (std::size_t index = 0; index < count; ++index) {
        const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(first[index].r_info));
        const auto symbol = static_cast<std::size_t>(ELF64_R_SYM(first[index].r_info));
        if (symbol == 0 || (type != kJumpSlot && type != kGlobalData && type != kAbsolute)) {
            continue;
        }
        const auto* slot =
            reinterpret_cast<const void* const*>(object.base + first[index].r_offset);
        visit(tables.strings + tables.symbols[symbol].st_name, *slot, data);
    }
}

}  // namespace

const char* LoadedObject::file() const noexcept { return file_of(path); }

bool LoadedObject::goes_by(const char* name) const noexcept {
    return same_text(soname != nullptr ? soname : file(), name);
}

bool for_each_object(bool (*visit)(const LoadedObject&, void*), void* data) noexcept {
    Visitor visitor{visit, data};
    return c_library_iterate()(&visit_object, &visitor) != 0;
}

void* defined_function(const LoadedObject& object, const char* name) noexcept {
    const Tables tables = tables_of(object);
    if (tables.symbols == nullptr || tables.strings == nullptr) {
        return nullptr;
    }
    if (tables.gnu_hash != nullptr) {
        return by_gnu_hash(object, tables, name);
    }
    return tables.old_hash == nullptr ? nullptr : by_old_hash(object, tables, name);
}

bool needs(const LoadedObject& object, const char* soname) noexcept {
    const Tables tables = tables_of(object);
    if (tables.strings == nullptr) {
        return false;
    }
    for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_NEEDED && same_text(tables.strings + entry->d_un.d_val, soname)) {
            return true;
        }
    }
    return false;
}

bool is_ourselves(const LoadedObject& object) noexcept {
    return object.contains(reinterpret_cast<const void*>(&is_ourselves));
}

void for_each_reference(const LoadedObject& object, void (*visit)(const char*, const void*, void*),
                        void* data) noexcept {
    const Tables tables = tables_of(object);
    if (tables.symbols == nullptr || tables.strings == nullptr) {
        return;
    }
    constexpr std::size_t kEach = sizeof(ElfW(Rela));
    visit_references(object, tables, tables.plt, tables.plt_bytes / kEach, visit, data);
    const std::size_t count = tables.data_bytes / kEach;
    if (tables.relative < count) {
        visit_references(object, tables, tables.data + tables.relative, count - tables.relative,
                         visit, data);
    }
}

unsigned other_namespaces_with(const char* prefix, char* path, std::size_t path_bytes) noexcept {
    path[0] = '\0';
    unsigned count = 0;
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
    const r_debug* debug = &_r_debug;
    asm volatile("" : "+r"(debug));  // longer than its declaration, if its version says so
    if (debug->r_version < 2) {
        return 0;
    }
    // Inside for_each_object() the loader's lists stand still.
    for_each_object([&](const LoadedObject&) {
        const auto* own = reinterpret_cast<const r_debug_extended*>(debug);
        for (const r_debug_extended* other = own->r_next; other != nullptr; other = other->r_next) {
            for (const link_map* map = other->base.r_map; map != nullptr; map = map->l_next) {
                const char* file = map->l_name == nullptr ? "" : file_of(map->l_name);
                if (std::strncmp(file, prefix, std::strlen(prefix)) == 0) {
                    ++count;
                    std::snprintf(path, path_bytes, "%s", map->l_name);
                    break;
                }
            }
        }
        return true;
    });
#else
    (void)prefix;
    (void)path_bytes;
#endif
    return count;
}

}  // namespace crossover
