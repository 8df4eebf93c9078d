// SPDX-License-Identifier: Apache-2.0
// PyTorch's ProcessGroupGloo with CUDA tensors (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
// AsyncAllreduceCUDAWork): the caller records an event on its stream, puts a stream of its own
// behind it and copies to pinned memory; a worker thread waits for that stream, exchanges over
// sockets, and copies back; wait() blocks the CPU until the worker is done and puts the current
// stream behind the copy. No NCCL: nothing on the device tells that the ranks communicate.
// DistributedDataParallel's buckets over it.
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "../dp_loop.hpp"
#include "../dp_meeting.hpp"
#include "../horovod_like/control.hpp"
#include "pattern.hpp"

namespace patterns {
namespace {

// The sum of one bucket, again and again.
struct Sum {
    float* device = nullptr;
    float* host = nullptr;  // pinned
    std::size_t count = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;  // ready, then done
    bool over = false;            // guarded by the worker's mutex
};

class Worker {
  public:
    // `gbps`: pace of the exchange; 0: none.
    Worker(hvd::Control& control, int device, double gbps)
        : control_(control), device_(device), gbps_(gbps), thread_(&Worker::run, this) {}
    ~Worker() {
        {
            const std::lock_guard lock(mutex_);
            end_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    void submit(Sum& sum, cudaStream_t current) {
        dp::order(current, sum.event, sum.stream);
        dp::check(cudaMemcpyAsync(sum.host, sum.device, sum.count * sizeof(float),
                                  cudaMemcpyDeviceToHost, sum.stream),
                  "cudaMemcpyAsync");
        {
            const std::lock_guard lock(mutex_);
            sum.over = false;
            queue_.push_back(&sum);
        }
        changed_.notify_all();
    }

    void wait(Sum& sum, cudaStream_t current) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return sum.over; });
        }
        dp::check(cudaStreamWaitEvent(current, sum.event, 0), "cudaStreamWaitEvent");
    }

  private:
    void run() {
        dp::check(cudaSetDevice(device_), "cudaSetDevice");
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return end_ || !queue_.empty(); });
            if (queue_.empty()) {
                return;
            }
            Sum& sum = *queue_.front();
            queue_.pop_front();
            lock.unlock();
            exchange(sum);
            lock.lock();
            sum.over = true;
            changed_.notify_all();
        }
    }

    void exchange(const Sum& sum) {
        dp::check(cudaStreamSynchronize(sum.stream), "cudaStreamSynchronize");
        const std::int64_t begin = dp::now_ns();
        try {
            control_.sum(sum.host, sum.count);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s: gloo: %s\n", program_invocation_short_name, error.what());
            std::exit(1);
        }
        if (gbps_ > 0.0) {
            const double bits = static_cast<double>(sum.count) * sizeof(float) * 8.0;
            dp::sleep_until(begin + static_cast<std::int64_t>(bits / gbps_));
        }
        dp::check(cudaMemcpyAsync(sum.device, sum.host, sum.count * sizeof(float),
                                  cudaMemcpyHostToDevice, sum.stream),
                  "cudaMemcpyAsync");
        dp::check(cudaEventRecord(sum.event, sum.stream), "cudaEventRecord");
    }

    hvd::Control& control_;
    const int device_;
    const double gbps_;
    std::mutex mutex_;  // everything below
    std::condition_variable changed_;
    std::deque<Sum*> queue_;
    bool end_ = false;
    std::thread thread_;
};

class Gloo final : public Pattern {
  public:
    explicit Gloo(const Settings& settings)
        : options_(settings.options),
          compute_(begin(options_)),
          model_(options_, options_.rank),
          barrier_(make_sum(dp::device_array<float>(1), 1)) {
        connect();
        model_.burner.calibrate(
            [this](double value) {
                control_.broadcast(&value, sizeof value);
                return value;
            },
            compute_);
        for (const dp::Bucket& bucket : model_.buckets) {
            sums_.push_back(make_sum(bucket.begin, bucket.size));
        }
        worker_ = std::make_unique<Worker>(control_, options_.device, settings.cpu_link_gbps);
    }

    void iteration(int number) override {
        model_.load(number, compute_);
        for (int l = 0; l < model_.count(); ++l) {
            model_.forward(l, compute_);
        }
        model_.loss(compute_);
        for (int l = model_.count() - 1; l >= 0; --l) {
            model_.backward(l, compute_);
            const int bucket = model_.layers[l].bucket;
            if (model_.buckets[bucket].last_layer == l) {
                worker_->submit(sums_[bucket], compute_);
            }
        }
        for (Sum& sum : sums_) {
            worker_->wait(sum, compute_);
        }
        for (int l = 0; l < model_.count(); ++l) {
            model_.step(l, options_.world_size, compute_);
        }
        model_.record_loss(number, options_.world_size, compute_);
    }

    cudaStream_t compute() const override { return compute_; }
    const float* history() const override { return model_.history; }
    void barrier() override {
        worker_->submit(barrier_, compute_);
        worker_->wait(barrier_, compute_);
    }
    std::uint64_t parameters_hash() override { return dp::hash_parameters(model_.layers); }
    std::uint64_t communicated_bytes() const override {
        return model_.gradient_count * sizeof(float);
    }
    double burn_per_ms() const override { return model_.burner.per_ms(); }

  private:
    static cudaStream_t begin(const dp::Options& options) {
        dp::select_device(options);
        return dp::new_stream();
    }

    static Sum make_sum(float* device, std::size_t count) {
        return {device, dp::host_array<float>(count), count, dp::new_stream(), dp::new_event()};
    }

    void connect() {
        try {
            int port = options_.rank == 0 ? control_.listen() : 0;
            dp::share_from_rank_zero(options_, &port, sizeof port);
            control_.connect(
                options_.rank, options_.world_size,
                options_.master_address.empty() ? "127.0.0.1" : options_.master_address, port,
                options_.timeout_s);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s: gloo: %s\n", program_invocation_short_name, error.what());
            std::exit(1);
        }
        if (options_.rank == 0) {
            dp::forget_meeting(options_);
        }
    }

    const dp::Options options_;
    const cudaStream_t compute_;
    dp::Model model_;
    Sum barrier_;
    std::vector<Sum> sums_;  // by bucket
    hvd::Control control_;
    std::unique_ptr<Worker> worker_;
};

}  // namespace

std::unique_ptr<Pattern> make_gloo_cpu(const Settings& settings) {
    return std::make_unique<Gloo>(settings);
}

}  // namespace patterns
