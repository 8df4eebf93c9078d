# Captures and graphs with the library preloaded into the test itself. Needs guest.cmake.
add_executable(capture_test capture_test.cpp capture_collective_test.cpp)
target_link_libraries(capture_test PRIVATE guest_machine crossover_options crossover_cuda_headers simgpu_cuda simgpu_nccl
                                           GTest::gtest_main Threads::Threads)
set_target_properties(capture_test PROPERTIES SKIP_BUILD_RPATH ON)

# crossover_capture_test(NAME FILTER [VARIABLE=value…]): cases of capture_test, on a machine of their own.
function(crossover_capture_test name filter)
    crossover_preload_test(${name} TIMEOUT 180 ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR}
                           COMMAND ${guest_machine} env LD_PRELOAD=${library} CROSSOVER_JOB=captures
                                   SIMGPU_KERNELS=$<TARGET_FILE:simgpu_client_test_kernels> ${ARGN}
                                   $<TARGET_FILE:capture_test> --gtest_filter=${filter})
endfunction()

crossover_capture_test(K19_captures_stay_whole "Captures.*")
# A lease longer than the test: a turn that only its lease ends is a fault, and a busy machine is none.
crossover_capture_test(K20_collectives_in_graphs "Collectives.*" CROSSOVER_LEASE_MS=10000)
