#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lookup_needs.sh CHECK LIBRARY
# What the library asks of the C library, read from its file. One check for each call.
set -u
check=$1 library=$2
undefined=$(objdump -T "$library" | grep -F '*UND*') || { echo "no undefined symbols can be read from $library"; exit 1; }
case $check in
    K07_*)
        ! grep GLIBC_PRIVATE <<<"$undefined" || exit 1
        ! grep -E '\b(__libc_dlsym|__libc_dlopen_mode|_dl_sym)\b' <<<"$undefined" || exit 1
        ;;
    K08_*)
        # The C library from which on the preload can be loaded at all.
        newest=$(grep -oE 'GLIBC_[0-9.]+' <<<"$undefined" | sed 's/GLIBC_//' | sort -V | tail -1)
        echo "newest version asked for: $newest"
        [ "$(printf '%s\n' "$newest" 2.34 | sort -V | tail -1)" = 2.34 ] ||
            { grep -F "$newest" <<<"$undefined"; exit 1; }
        ! grep -E 'GLIBCXX|CXXABI|GCC_' <<<"$undefined" || exit 1
        ;;
    K11_*)
        needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
        echo "needs: $needed"
        ! grep -vE '^(libc\.so\.6|ld-linux.*)$' <<<"$needed" || exit 1
        [ -z "$(LD_LIBRARY_PATH='' LD_PRELOAD=$library /bin/true 2>&1)" ] || exit 1
        [ "$(env -i LD_PRELOAD="$library" /bin/echo alive 2>&1)" = alive ] || exit 1
        ;;
    *)
        echo "unknown check $check"; exit 2 ;;
esac
