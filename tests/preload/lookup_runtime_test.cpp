// SPDX-License-Identifier: Apache-2.0
// Several CUDA runtimes in one process: each caller reaches its own, through the library. Stand-ins
// that return their number, in LOADER_FOLDER. Runs with libcrossover.so preloaded; no device is
// needed.
#include <cuda_runtime_api.h>

#include <thread>
#include <vector>

#include "lookup_common.hpp"

using lookup::function;
using lookup::is_ours;
using lookup::open_library;

namespace {

const std::string kFolder = LOADER_FOLDER;

struct Plugin {
    std::string file;
    int tag;
};
// Linked to 12, to 13, to a 12 under another name (as wheels rename it), and with a runtime inside.
const std::vector<Plugin> kPlugins = {{"libplugin_12.so", 12},
                                      {"libplugin_13.so", 13},
                                      {"libplugin_renamed.so", 62},
                                      {"libplugin_inside.so", 71}};

int launch_of(void* plugin) { return function<int (*)()>(plugin, "plugin_launch")(); }

bool bound_to_us(void* plugin) {
    return is_ours(function<void* (*)()>(plugin, "plugin_binding")());
}

int call(void* address) {
    return static_cast<int>(reinterpret_cast<decltype(&cudaLaunchKernel)>(address)(
        nullptr, dim3(1), dim3(1), nullptr, 0, nullptr));
}

void reach_own_runtime(const std::vector<Plugin>& plugins) {
    std::vector<void*> open;
    for (const Plugin& plugin : plugins) {
        open.push_back(open_library(kFolder + plugin.file));
        ASSERT_NE(open.back(), nullptr);
    }
    for (int round = 0; round < 2; ++round) {
        for (std::size_t index = 0; index < plugins.size(); ++index) {
            EXPECT_TRUE(bound_to_us(open[index])) << plugins[index].file;
            EXPECT_EQ(launch_of(open[index]), plugins[index].tag) << plugins[index].file;
        }
    }
}

TEST(Majors, EachPluginReachesTheRuntimeItIsLinkedTo) { reach_own_runtime(kPlugins); }

TEST(Majors, WhateverComesFirst) { reach_own_runtime({kPlugins.rbegin(), kPlugins.rend()}); }

TEST(Majors, ManyThreadsMeetAtTheFirstLaunch) {
    std::vector<void*> open;
    for (const Plugin& plugin : kPlugins) {
        open.push_back(open_library(kFolder + plugin.file));
    }
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (std::size_t index = 0; index < wrong.size(); ++index) {
        threads.emplace_back([&, index] {
            for (int round = 0; round < 500; ++round) {
                const std::size_t which = (index + static_cast<std::size_t>(round)) % open.size();
                wrong[index] += launch_of(open[which]) == kPlugins[which].tag ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

// The return address of a call in tail position is in this program, which is linked to no runtime;
// the version of the reference still tells the release.
TEST(Majors, ACallInTailPosition) {
    void* twelve = open_library(kFolder + "libplugin_12.so");
    void* thirteen = open_library(kFolder + "libplugin_13.so");
    EXPECT_EQ(function<int (*)()>(twelve, "plugin_graph_launch")(), 12);
    EXPECT_EQ(function<int (*)()>(thirteen, "plugin_graph_launch")(), 13);
}

TEST(Majors, AHandleDecides) {
    void* twelve = open_library("libcudart.so.12");
    void* thirteen = open_library("libcudart.so.13");
    void* first = dlsym(thirteen, "cudaLaunchKernel");
    void* second = dlsym(twelve, "cudaLaunchKernel");
    EXPECT_TRUE(is_ours(first));
    EXPECT_TRUE(is_ours(second));
    EXPECT_EQ(call(first), 13);
    EXPECT_EQ(call(second), 12);
    void* exact = dlvsym(twelve, "cudaLaunchKernel", "libcudart.so.12");
    EXPECT_TRUE(is_ours(exact));
    EXPECT_EQ(call(exact), 12);
    EXPECT_EQ(dlvsym(twelve, "cudaLaunchKernel", "libcudart.so.13"), nullptr);
    EXPECT_EQ(dlsym(twelve, "cudaGraphLaunch_ptsz"), nullptr) << "which this runtime lacks";
    void* renamed = open_library(kFolder + "libcudart-0123abcd.so.12");
    EXPECT_EQ(call(dlsym(renamed, "cudaLaunchKernel")), 62);
}

TEST(Majors, ThePseudoHandlesGiveWhatIsThere) {
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "cudaLaunchKernel"), nullptr) << "no runtime yet";
    EXPECT_EQ(dlvsym(RTLD_DEFAULT, "cudaLaunchKernel", "libcudart.so.13"), nullptr);
    open_library("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL);
    open_library("libcudart.so.12", RTLD_NOW | RTLD_GLOBAL);
    void* first = dlsym(RTLD_DEFAULT, "cudaLaunchKernel");
    ASSERT_TRUE(is_ours(first));
    EXPECT_EQ(call(first), 13) << "the first in the global scope";
    void* twelve = dlvsym(RTLD_DEFAULT, "cudaLaunchKernel", "libcudart.so.12");
    ASSERT_TRUE(is_ours(twelve));
    EXPECT_EQ(call(twelve), 12);
    EXPECT_EQ(dlvsym(RTLD_DEFAULT, "cudaLaunchKernel", "libcudart.so.11.0"), nullptr);
    void* program = dlsym(dlopen(nullptr, RTLD_NOW), "cudaLaunchKernel");
    ASSERT_TRUE(is_ours(program));
    EXPECT_EQ(call(program), 13);
}

// NCCL, too, may be inside the library that uses it, with its names exported.
TEST(Nccl, EachPluginReachesItsOwn) {
    void* linked = open_library(kFolder + "libplugin_nccl.so");
    void* inside = open_library(kFolder + "libplugin_nccl_inside.so");
    for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(function<int (*)()>(linked, "plugin_group_start")(), 2);
        EXPECT_EQ(function<int (*)()>(inside, "plugin_group_start")(), 5);
    }
    EXPECT_TRUE(is_ours(function<void* (*)()>(linked, "plugin_nccl_binding")()));
    EXPECT_TRUE(is_ours(function<void* (*)()>(inside, "plugin_nccl_binding")()));
    const auto by_handle = function<int (*)()>(open_library("libnccl.so.2"), "ncclGroupStart");
    EXPECT_TRUE(is_ours(reinterpret_cast<void*>(by_handle)));
    EXPECT_EQ(by_handle(), 2);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "ncclCommInitRankScalable"), nullptr) << "which this one lacks";
}

// A tool that wraps the same function, preloaded before or behind us, stays in the chain, once.
TEST(Chain, AnotherWrapperIsNotCutOut) {
    void* plugin = open_library(kFolder + "libplugin_12.so");
    EXPECT_EQ(launch_of(plugin), 112);
    EXPECT_EQ(call(dlsym(open_library("libcudart.so.12"), "cudaLaunchKernel")), 12)
        << "by handle, past it";
}

// A plug-in with RTLD_DEEPBIND calls its runtime past us; the runtime was there before and launches
// through us.
TEST(Deepbind, ARuntimeThatWasThereLaunchesThroughUs) {
    void* runtime = open_library("libcudart.so.12");
    void* plugin = open_library(kFolder + "libplugin_12.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    EXPECT_FALSE(bound_to_us(plugin)) << "if this is caught, drop the report";
    EXPECT_EQ(launch_of(plugin), 12);
    EXPECT_TRUE(is_ours(function<void* (*)()>(runtime, "cudaLoaderDriverLaunch")()));
}

// With a runtime that came in by it, nothing of it is seen.
TEST(Deepbind2, ARuntimeThatCameWithItIsNotSeen) {
    void* plugin = open_library(kFolder + "libplugin_12.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    EXPECT_FALSE(bound_to_us(plugin));
    EXPECT_EQ(launch_of(plugin), 12);
    void* launch =
        function<void* (*)()>(open_library("libcudart.so.12"), "cudaLoaderDriverLaunch")();
    ASSERT_NE(launch, nullptr);
    EXPECT_FALSE(is_ours(launch)) << "if this is caught, drop the report";
}

TEST(Dlmopen, ASecondNamespaceWorksAndIsReported) {
    void* plugin =
        dlmopen(LM_ID_NEWLM, (kFolder + "libplugin_12.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(plugin, nullptr) << dlerror();
    EXPECT_FALSE(bound_to_us(plugin));
    EXPECT_EQ(launch_of(plugin), 12);
    void* runtime = dlmopen(LM_ID_NEWLM, "libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(runtime, nullptr) << dlerror();
    EXPECT_EQ(call(dlsym(runtime, "cudaLaunchKernel")), 13) << "by its handle, from here";
}

}  // namespace
