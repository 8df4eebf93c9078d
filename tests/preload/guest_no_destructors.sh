#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# guest_no_destructors.sh OBJECT…
# No object file of the library asks for a destructor at the process's exit: threads of the host may launch until the
# very end, so no static object of ours may go away before. thread_end.cpp alone asks for one at a thread's end, which
# does nothing at the end of the main thread (tests/unit/thread_end_test.cpp).
set -u
failed=0
for object in "$@"; do
    forbidden='__cxa_(thread_)?atexit'
    [[ $object != */thread_end.cpp.o ]] || forbidden='__cxa_atexit'
    if nm --undefined-only "$object" | grep -qE "$forbidden"; then
        echo "$object: has a static or thread-local object with a destructor"
        failed=1
    fi
done
(($# > 20)) || { echo "only $# object files given"; failed=1; }
exit $failed
