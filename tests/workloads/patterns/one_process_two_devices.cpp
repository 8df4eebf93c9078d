// SPDX-License-Identifier: Apache-2.0
// One process and one thread that drives several devices, as TensorFlow's MirroredStrategy and the
// NCCL guide's first example do: ncclCommInitAll, and each iteration's all-reduces of all devices
// inside one ncclGroupStart/ncclGroupEnd, each on its device's own stream; the current device
// changes all the time.
#include <string>

#include "../dp_loop.hpp"
#include "../dp_nccl.hpp"
#include "pattern.hpp"

namespace patterns {
namespace {

class OneProcess final : public Pattern {
  public:
    explicit OneProcess(const Settings& settings) : settings_(settings) {
        if (settings_.options.world_size != 1) {
            refuse("--world-size " + std::to_string(settings_.options.world_size) +
                   "; allowed: 1, for one_process_two_devices is one process");
        }
        int devices = 0;
        dp::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
        if (settings_.local_devices > devices) {
            refuse("--local-devices " + std::to_string(settings_.local_devices) +
                   "; allowed: as many as there are, " + std::to_string(devices));
        }
        for (int device = 0; device < count(); ++device) {
            select(device);
            streams_.push_back(dp::new_stream());
            // Each replica has data of its own, as a rank has.
            models_.push_back(std::make_unique<dp::Model>(settings_.options, device));
        }
        communicators_.resize(count());
        dp::check(ncclCommInitAll(communicators_.data(), count(), nullptr), "ncclCommInitAll");
        select(0);
        models_[0]->burner.calibrate([](double value) { return value; }, streams_[0]);
        for (int device = 1; device < count(); ++device) {
            select(device);
            models_[device]->burner.calibrate(
                [this](double) { return models_[0]->burner.per_ms(); }, streams_[device]);
        }
        select(0);
    }

    ~OneProcess() override {
        for (const ncclComm_t communicator : communicators_) {
            dp::check(ncclCommDestroy(communicator), "ncclCommDestroy");
        }
    }

    void iteration(int number) override {
        for (int device = 0; device < count(); ++device) {
            select(device);
            const dp::Model& model = *models_[device];
            const cudaStream_t stream = streams_[device];
            model.load(number, stream);
            for (int l = 0; l < model.count(); ++l) {
                model.forward(l, stream);
            }
            model.loss(stream);
            for (int l = model.count() - 1; l >= 0; --l) {
                model.backward(l, stream);
            }
        }
        dp::check(ncclGroupStart(), "ncclGroupStart");
        for (int device = 0; device < count(); ++device) {
            for (const dp::Bucket& bucket : models_[device]->buckets) {
                dp::check(ncclAllReduce(bucket.begin, bucket.begin, bucket.size, ncclFloat32,
                                        ncclSum, communicators_[device], streams_[device]),
                          "ncclAllReduce");
            }
        }
        dp::check(ncclGroupEnd(), "ncclGroupEnd");
        // The first device last: it is the one that stays current.
        for (int device = count() - 1; device >= 0; --device) {
            select(device);
            const dp::Model& model = *models_[device];
            for (int l = 0; l < model.count(); ++l) {
                model.step(l, count(), streams_[device]);
            }
            model.record_loss(number, count(), streams_[device]);
        }
    }

    cudaStream_t compute() const override { return streams_[0]; }
    const float* history() const override { return models_[0]->history; }
    void barrier() override {
        for (int device = count() - 1; device >= 0; --device) {
            select(device);
            dp::check(cudaStreamSynchronize(streams_[device]), "cudaStreamSynchronize");
        }
    }
    // All devices end alike, or the hash is none.
    std::uint64_t parameters_hash() override {
        std::uint64_t hash = 0;
        bool alike = true;
        for (int device = count() - 1; device >= 0; --device) {
            select(device);
            dp::check(cudaStreamSynchronize(streams_[device]), "cudaStreamSynchronize");
            const std::uint64_t own = dp::hash_parameters(models_[device]->layers);
            alike = alike && (device == count() - 1 || own == hash);
            hash = own;
        }
        return alike ? hash : 0;
    }
    std::uint64_t communicated_bytes() const override {
        return models_[0]->gradient_count * sizeof(float);
    }
    double burn_per_ms() const override { return models_[0]->burner.per_ms(); }

  private:
    int count() const { return settings_.local_devices; }
    static void select(int device) { dp::check(cudaSetDevice(device), "cudaSetDevice"); }

    const Settings settings_;
    std::vector<cudaStream_t> streams_;  // by device, as the others
    std::vector<std::unique_ptr<dp::Model>> models_;
    std::vector<ncclComm_t> communicators_;
};

}  // namespace

std::unique_ptr<Pattern> make_one_process_two_devices(const Settings& settings) {
    return std::make_unique<OneProcess>(settings);
}

}  // namespace patterns
