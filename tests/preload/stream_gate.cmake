# The gate in the GPU's queues: what is its own, and the guest's and the captures' tests again under it. Needs
# guest.cmake and capture.cmake.
add_executable(stream_gate_test stream_gate_test.cpp)
target_link_libraries(stream_gate_test PRIVATE guest_machine crossover_options GTest::gtest_main Threads::Threads)

function(crossover_stream_gate_test name program filter)
    crossover_preload_test(stream_gate.${name} TIMEOUT 300 ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR} ${ARGN}
                           COMMAND ${guest_machine} $<TARGET_FILE:${program}> --gtest_filter=${filter})
endfunction()
crossover_stream_gate_test(waits stream_gate_test "StreamGate.*")
crossover_stream_gate_test(ends stream_gate_test "All/StreamGateEnds.*")
# Guests whose tests do not count on a launching thread that waits.
foreach(kind Contexts Forks Exec Snapshot Folder Start Devices Bounds Threads Moves)
    crossover_stream_gate_test(guest_${kind} guest_test "Guest${kind}.*" CROSSOVER_GATE=stream)
endforeach()
foreach(kind Ends Vanish)
    crossover_stream_gate_test(guest_${kind} guest_test "All/Guest${kind}.*" CROSSOVER_GATE=stream)
endforeach()
crossover_capture_test(stream_gate.captures "Captures.*" CROSSOVER_GATE=stream)
crossover_capture_test(stream_gate.graphs "Collectives.*" CROSSOVER_GATE=stream CROSSOVER_LEASE_MS=10000)
