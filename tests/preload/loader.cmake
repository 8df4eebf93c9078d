# Every way in which a program gets hold of a function, one test for each kind of trouble that libraries like ours
# have had with it. The stand-ins for drivers and runtimes are built here.
set(programs ${PROJECT_SOURCE_DIR}/tests/programs)
set(loader ${CMAKE_BINARY_DIR}/tests/loader)

# loader_library(TARGET NAME FOLDER SOURCES ... [DEFINITIONS ...] [LIBRARIES ...] [VERSION ...] [SONAME ...])
# A shared library NAME in FOLDER; VERSION: the version of its exported symbols.
function(loader_library target name folder)
    cmake_parse_arguments(arg "" "VERSION;SONAME" "SOURCES;DEFINITIONS;LIBRARIES" ${ARGN})
    list(TRANSFORM arg_SOURCES PREPEND ${programs}/)
    add_library(${target} SHARED ${arg_SOURCES})
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX "" NO_SONAME ON
                          LIBRARY_OUTPUT_DIRECTORY ${loader}/${folder})
    target_compile_definitions(${target} PRIVATE ${arg_DEFINITIONS})
    target_link_libraries(${target} PRIVATE crossover_options crossover_cuda_headers ${arg_LIBRARIES} ${CMAKE_DL_LIBS})
    if(NOT arg_SONAME)
        set(arg_SONAME ${name})
    endif()
    target_link_options(${target} PRIVATE -Wl,-soname,${arg_SONAME})
    if(arg_VERSION)
        set(map ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
        file(CONFIGURE OUTPUT ${map} CONTENT "${arg_VERSION} { global: cuda*; local: *; };\n")
        target_link_options(${target} PRIVATE -Wl,--version-script=${map})
    endif()
endfunction()

foreach(kind plain no_v2 early newer two_addresses inner)
    string(TOUPPER LOADER_${kind} definition)
    loader_library(loader_driver_${kind} libcuda.so.1 driver_${kind} SOURCES loader_driver.cpp
                   DEFINITIONS ${definition})
endforeach()
loader_library(loader_driver_part libcuda_inner.so driver_inner SOURCES loader_driver.cpp)
loader_library(loader_cudnn libcudnn_stub.so driver_plain SOURCES loader_cudnn.cpp)
loader_library(loader_cudnn_part libcudnn_part.so driver_plain SOURCES loader_cudnn.cpp DEFINITIONS LOADER_PART)

loader_library(loader_runtime_12 libcudart.so.12 runtimes SOURCES loader_runtime.cpp DEFINITIONS LOADER_TAG=12
               VERSION libcudart.so.12)
loader_library(loader_runtime_13 libcudart.so.13 runtimes SOURCES loader_runtime.cpp DEFINITIONS LOADER_TAG=13
               VERSION libcudart.so.13)
loader_library(loader_runtime_renamed libcudart-0123abcd.so.12 runtimes SOURCES loader_runtime.cpp
               DEFINITIONS LOADER_TAG=62 VERSION libcudart.so.12)
foreach(kind 12 13 renamed)
    loader_library(loader_plugin_${kind} libplugin_${kind}.so runtimes SOURCES loader_plugin.cpp
                   LIBRARIES loader_runtime_${kind})
endforeach()
loader_library(loader_plugin_inside libplugin_inside.so runtimes SOURCES loader_plugin.cpp loader_runtime.cpp
               DEFINITIONS LOADER_TAG=71)

loader_library(loader_nccl libnccl.so.2 runtimes SOURCES loader_nccl.cpp DEFINITIONS LOADER_TAG=2)
loader_library(loader_plugin_nccl libplugin_nccl.so runtimes SOURCES loader_nccl.cpp DEFINITIONS LOADER_USER
               LIBRARIES loader_nccl)
loader_library(loader_plugin_nccl_inside libplugin_nccl_inside.so runtimes SOURCES loader_nccl.cpp
               DEFINITIONS LOADER_TAG=5 LOADER_USER)

loader_library(loader_allocator libloader_allocator.so . SOURCES loader_allocator.cpp)
loader_library(loader_dlsym_preload libloader_dlsym.so . SOURCES loader_dlsym_preload.cpp)
loader_library(loader_wrapper libloader_wrapper.so . SOURCES loader_wrapper.cpp)
loader_library(loader_small_tls libloader_small_tls.so . SOURCES loader_small_tls.cpp)
loader_library(loader_runpath libloader_runpath.so . SOURCES loader_runpath.cpp)
loader_library(loader_beside libloader_beside.so sub SOURCES loader_runpath.cpp DEFINITIONS LOADER_PART)
set_target_properties(loader_runpath PROPERTIES BUILD_RPATH "$ORIGIN/sub")
target_link_options(loader_runpath PRIVATE -Wl,--enable-new-dtags)  # RUNPATH, which is the caller's alone

add_executable(loader_linked ${programs}/loader_linked.cpp)
target_link_libraries(loader_linked PRIVATE crossover_options loader_driver_plain ${CMAKE_DL_LIBS})

# loader_program(NAME DEFINITIONS...)
function(loader_program name)
    add_executable(${name} ${name}.cpp)
    target_compile_definitions(${name} PRIVATE ${ARGN})
    target_link_libraries(${name} PRIVATE crossover_options crossover_cuda_headers GTest::gtest_main Threads::Threads
                                          ${CMAKE_DL_LIBS})
endfunction()
loader_program(lookup_driver_test)
loader_program(lookup_runtime_test LOADER_FOLDER="${loader}/runtimes/")
loader_program(lookup_process_test LOADER_FOLDER="${loader}/")

loader_program(lookup_entry_point_test)
target_link_libraries(lookup_entry_point_test PRIVATE simgpu_cudart_13)
add_dependencies(lookup_entry_point_test simgpu_cudart_12 simgpu_cuda simgpu_server)
set_target_properties(lookup_entry_point_test PROPERTIES SKIP_BUILD_RPATH ON)
crossover_preload_test(entry_points
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/simgpu-run -- env LD_PRELOAD=${library} $<TARGET_FILE:lookup_entry_point_test>
    ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR})

# lookup_cases(NAME PROGRAM FILTER [DRIVER KIND] [PRELOAD LIBRARIES] [ENVIRONMENT ...])
# Runs the program's cases that FILTER names, under the preload (among PRELOAD if that is given).
function(lookup_cases name program filter)
    cmake_parse_arguments(arg "" "DRIVER;PRELOAD" "ENVIRONMENT" ${ARGN})
    if(NOT arg_PRELOAD)
        set(arg_PRELOAD ${library})
    endif()
    if(NOT arg_DRIVER)
        set(arg_DRIVER plain)
    endif()
    crossover_preload_test(${name} COMMAND ${program} --gtest_filter=${filter}
        ENVIRONMENT LD_PRELOAD=${arg_PRELOAD} LD_LIBRARY_PATH=${loader}/driver_${arg_DRIVER}:${loader}/runtimes
                    ${arg_ENVIRONMENT})
    # A filter that names nothing passes otherwise.
    set_tests_properties(preload.${name} PROPERTIES FAIL_REGULAR_EXPRESSION "Running 0 tests")
endfunction()

lookup_cases(K01_get_proc_address_before_init lookup_driver_test "K01.*")
lookup_cases(K02_get_proc_address_finds_itself lookup_driver_test "K02.*")
crossover_preload_test(K02_linked_to_the_driver COMMAND loader_linked
    ENVIRONMENT LD_PRELOAD=${library} LD_LIBRARY_PATH=${loader}/driver_plain)
lookup_cases(K03_repeated_look_ups lookup_process_test "K03.Repeated*")
set(wraps_dlsym $<TARGET_FILE:loader_dlsym_preload>)
lookup_cases(K03_second_dlsym_behind_us lookup_process_test "K03.ASecond*" PRELOAD ${library}:${wraps_dlsym})
lookup_cases(K03_second_dlsym_before_us lookup_process_test "K03.ASecond*" PRELOAD ${wraps_dlsym}:${library})
crossover_preload_test(K04_any_path_of_the_library
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lookup_paths.sh ${library} $<TARGET_FILE:lookup_driver_test>
            --gtest_filter=K04.*
    ENVIRONMENT LD_LIBRARY_PATH=${loader}/driver_plain)
lookup_cases(K05_driver_that_forwards lookup_driver_test "K05.*" DRIVER inner)
lookup_cases(K06_driver_that_looks_up_while_loading lookup_driver_test "K06.*" DRIVER early)
foreach(check K07_no_private_glibc_symbols K08_floor_of_glibc K11_needs_the_c_library_alone)
    crossover_preload_test(${check} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lookup_needs.sh ${check} ${library})
endforeach()
set(allocator $<TARGET_FILE:loader_allocator>)
lookup_cases(K09_allocator_behind_us lookup_process_test "K09.*" PRELOAD ${library}:${allocator})
lookup_cases(K09_allocator_before_us lookup_process_test "K09.*" PRELOAD ${allocator}:${library})
lookup_cases(K10_runpath_of_the_caller lookup_process_test "K10.*")
lookup_cases(K12_small_thread_local_storage lookup_process_test "K12.*")
lookup_cases(K13_unknown_symbols lookup_driver_test "K13.*")
lookup_cases(K15_driver_without_second_form lookup_driver_test "K15.*" DRIVER no_v2)
lookup_cases(K16_later_forms lookup_driver_test "K16.ALater*" DRIVER newer)
lookup_cases(K16_two_addresses lookup_driver_test "K16.ADriver*" DRIVER two_addresses)
lookup_cases(K17_stream_family lookup_driver_test "K17.*")

# Each in a process of its own: what is loaded first matters.
foreach(case EachPluginReachesTheRuntimeItIsLinkedTo WhateverComesFirst ManyThreadsMeetAtTheFirstLaunch
             ACallInTailPosition AHandleDecides ThePseudoHandlesGiveWhatIsThere)
    lookup_cases(runtimes.${case} lookup_runtime_test "Majors.${case}")
endforeach()
set(wrapper $<TARGET_FILE:loader_wrapper>)
lookup_cases(runtimes.wrapper_behind_us lookup_runtime_test "Chain.*" PRELOAD ${library}:${wrapper})
lookup_cases(runtimes.wrapper_before_us lookup_runtime_test "Chain.*" PRELOAD ${wrapper}:${library})
lookup_cases(nccl_of_the_caller lookup_runtime_test "Nccl.*")
foreach(case Deepbind Deepbind2 Dlmopen)
    string(TOLOWER ${case} kind)
    crossover_preload_test(blind_spots.${kind}
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lookup_reports.sh ${library} ${kind}
                $<TARGET_FILE:lookup_runtime_test> "--gtest_filter=${case}.*"
        ENVIRONMENT LD_LIBRARY_PATH=${loader}/driver_plain:${loader}/runtimes)
endforeach()
crossover_preload_test(blind_spots.none
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lookup_reports.sh ${library} none
            $<TARGET_FILE:lookup_runtime_test> "--gtest_filter=Majors.EachPluginReachesTheRuntimeItIsLinkedTo"
    ENVIRONMENT LD_LIBRARY_PATH=${loader}/runtimes)
