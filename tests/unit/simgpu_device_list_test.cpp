// SPDX-License-Identifier: Apache-2.0
// Which devices a program sees on the virtual GPU, as the real driver's documentation says, and
// what a MIG instance is to the timed model.
#include "device_list.hpp"

#include "simgpu_machine.hpp"

namespace simgpu {
namespace {

using Numbers = std::vector<std::size_t>;

TEST(SimgpuDeviceList, IdentifiersAreTheMachinesOwnAndStay) {
    const auto list = make_device_list("/m", 2, 3);
    ASSERT_EQ(list.size(), 6U);
    std::map<std::string, int> seen;
    for (const ListedDevice& device : list) {
        ++seen[uuid_text(device.id, true)];
        ++seen[uuid_text(device.gpu_id, true)];
    }
    EXPECT_EQ(seen.size(), 8U);  // six instances and two GPUs, all different
    EXPECT_EQ(list[3].gpu, 1);
    EXPECT_EQ(make_device_list("/m", 2, 3)[4].id, list[4].id);
    EXPECT_NE(make_device_list("/other", 2, 3)[4].id, list[4].id);
    EXPECT_EQ(make_device_list("/m", 2, 0)[1].id, list[3].gpu_id);
    EXPECT_EQ(make_device_list("/m", 2, 1)[1].gpu_id, list[3].gpu_id);
    EXPECT_NE(make_device_list("/m", 2, 1)[1].id, list[3].gpu_id);
}

TEST(SimgpuDeviceList, TextAndBack) {
    for (const int instances : {0, 1, 7}) {
        const auto list = make_device_list("/m", 3, instances);
        const auto back = parse_device_list(format_device_list(list));
        ASSERT_EQ(back.size(), list.size());
        for (std::size_t i = 0; i < list.size(); ++i) {
            EXPECT_EQ(back[i].gpu, list[i].gpu);
            EXPECT_EQ(back[i].gpu_id, list[i].gpu_id);
            EXPECT_EQ(back[i].id, list[i].id);
            EXPECT_EQ(back[i].is_instance, list[i].is_instance);
        }
    }
    const std::string good = format_device_list(make_device_list("/m", 1, 1));
    EXPECT_TRUE(parse_device_list("").empty());
    EXPECT_TRUE(parse_device_list(good + "more\n").empty());
    EXPECT_TRUE(parse_device_list(good.substr(good.find('\n') + 1)).empty()) << "without its GPU";
    for (std::size_t length = 1; length + 2 < good.size(); ++length) {
        const bool whole_line = good[length - 1] == '\n' || good[length - 1] == ')';
        EXPECT_EQ(parse_device_list(good.substr(0, length)).empty(), !whole_line) << length;
    }
}

struct Visible {
    const char* list;
    Numbers seen;
};

// "@2" is the UUID of the second GPU, "#12" that of the third instance of the second.
std::string filled_in(std::string list, const std::vector<ListedDevice>& devices) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const ListedDevice& device = devices[i];
        const std::size_t first = i - (device.is_instance ? i % 3 : 0);
        const std::string gpu = "@" + std::to_string(device.gpu + 1);
        const std::string instance = "#" + std::to_string(device.gpu) + std::to_string(i - first);
        for (std::size_t at = 0; (at = list.find(gpu)) != std::string::npos;)
            list.replace(at, gpu.size(), uuid_text(device.gpu_id, false));
        for (std::size_t at = 0; (at = list.find(instance)) != std::string::npos;)
            list.replace(at, instance.size(), uuid_text(device.id, true));
    }
    return list;
}

TEST(SimgpuDeviceList, WholeGpus) {
    const auto devices = make_device_list("/m", 4, 0);
    const std::string third = uuid_text(devices[2].id, false);
    EXPECT_EQ(visible_devices(devices, nullptr), (Numbers{0, 1, 2, 3}));
    const Visible cases[] = {
        {"0", {0}},      {"2,0", {2, 0}},  {" 1 ,\t3", {1, 3}},
        {"@3", {2}},     {"@4,0", {3, 0}}, {"", {}},
        {"-1", {}},      {"4", {}},        {"1,4,2", {1}},
        {"1,-1,2", {1}}, {"1,,2", {1}},    {"x", {}},
        {"1,x", {1}},    {"1,1", {}},      {"2,@3", {}},
        {"GPU-", {}},    {"1.5", {}},      {"99999999999", {}},
        {"@3x", {}},     {"MIG-", {}},     {"0,1,2,3,", {0, 1, 2, 3}},
    };
    for (const Visible& each : cases)
        EXPECT_EQ(visible_devices(devices, filled_in(each.list, devices).c_str()), each.seen)
            << "'" << each.list << "'";
    // As much of it as no other has.
    for (std::size_t length = 4; length <= third.size(); ++length) {
        std::size_t alike = 0;
        for (const ListedDevice& device : devices)
            alike += uuid_text(device.id, false).substr(0, length) == third.substr(0, length);
        EXPECT_EQ(visible_devices(devices, third.substr(0, length).c_str()),
                  alike == 1 ? Numbers{2} : Numbers{})
            << length;
    }
    // Identifiers of an instance mean nothing where no GPU is split.
    const auto split = make_device_list("/m", 4, 3);
    EXPECT_EQ(visible_devices(devices, uuid_text(split[0].id, true).c_str()), Numbers{});
}

TEST(SimgpuDeviceList, OfInstancesAProcessSeesOne) {
    const auto devices = make_device_list("/m", 2, 3);
    EXPECT_EQ(visible_devices(devices, nullptr), Numbers{0});
    const Visible cases[] = {
        {"0", {0}},       {"1", {3}},     {"1,0", {3}},  {"@2", {3}},    {"#02", {2}},
        {"#12,#01", {5}}, {"#11,0", {4}}, {"x,#11", {}}, {"#11,x", {4}}, {"", {}},
        {"2", {}},        {"#11x", {}},   {"MIG-", {}},
    };
    for (const Visible& each : cases)
        EXPECT_EQ(visible_devices(devices, filled_in(each.list, devices).c_str()), each.seen)
            << "'" << each.list << "'";
}

// A kernel that could use `share` of a whole GPU, on an instance of a third.
struct OnThird {
    float share;
    std::uint64_t ms;  // it takes 6 alone on the GPU
};

TEST(SimgpuDeviceList, AnInstanceHasItsPartOfTheGpuAndNoneOfTheOthers) {
    for (const OnThird each : {OnThird{1.0F, 18}, OnThird{0.5F, 9}, OnThird{0.2F, 6}}) {
        EngineSettings settings = plain();
        settings.devices = 6;
        settings.instances = 3;
        Machine machine(settings);
        for (const ClientId client : {1, 2}) {
            machine.client(client);
            machine.stream(client, 1, static_cast<int>(client));
            machine.send(client, Machine::op(OpKind::kKernel, 1, 1, 6 * kMs, each.share), 0);
        }
        machine.run();
        EXPECT_EQ(machine.done(1, 1), each.ms * kMs) << each.share;
        EXPECT_EQ(machine.done(2, 1), each.ms * kMs) << each.share;
    }
}

TEST(SimgpuDeviceList, ProcessesOnOneInstanceShareIt) {
    EngineSettings settings = plain();
    settings.devices = 2;
    settings.instances = 2;
    Machine machine(settings);
    for (const ClientId client : {1, 2}) {
        machine.client(client);
        machine.stream(client, 1, 1);
        machine.send(client, Machine::op(OpKind::kKernel, 1, 1, 6 * kMs), 0);
    }
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 24 * kMs);
    EXPECT_EQ(machine.done(2, 1), 24 * kMs);
}

}  // namespace
}  // namespace simgpu
