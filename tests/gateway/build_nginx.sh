#!/usr/bin/env bash
# build_nginx.sh FOLDER - builds an nginx with sanitizers and our module for
# it, from the source package of the nginx that is installed. FOLDER has a
# liblatchkey.a with the same sanitizers; nginx and the module go there.
# The source is fetched once, without changing this machine's list of sources.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(cd "${1:?usage: build_nginx.sh FOLDER}" && pwd)
work=$folder/nginx-src

version=$(dpkg-query -W -f '${source:Version}' nginx)

# Debian's archives as they are configured here, but for source packages.
write_sources() {
    mkdir -p "$work/apt/parts" "$work/apt/lists/partial"
    local file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/apt/parts/$(basename "$file")"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] || continue
        sed -n 's/^deb /deb-src /p' "$file" >"$work/apt/parts/$(basename "$file" .list).list"
    done
}

apt() {
    apt-get -q -o Dir::Etc::SourceList=/dev/null \
        -o Dir::Etc::SourceParts="$work/apt/parts" \
        -o Dir::State::Lists="$work/apt/lists" \
        -o Dir::Cache="$work/apt" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

fetch() {
    write_sources
    apt update || true # one of several archives may have no sources
    # An archive keeps only the newest version: then that one.
    (cd "$work" && { apt source --download-only "nginx=$version" ||
        apt source --download-only nginx; })
    tar -C "$work" -xzf "$work"/nginx_*.orig.tar.gz
    mv "$work"/nginx-[0-9]*/ "$work/nginx"
}

# Each dynamic module of nginx has the same few global names, by design; and
# what nginx still has when it ends is left to the system.
write_options() {
    echo 'const char *__asan_default_options(void);
const char *__asan_default_options(void)
{ return "detect_odr_violation=0:detect_leaks=0"; }' >"$work/options.c"
    cc -c -fPIC -o "$work/options.o" "$work/options.c"
}

# What the tests use. NGX_DEBUG_PALLOC: each piece of a pool is an allocation
# of its own, so that the sanitizer sees where one ends.
configure() {
    cd "$work/nginx"
    LATCHKEY_INC=$root/include LATCHKEY_LIB=$folder ./configure \
        --with-compat --with-debug --with-threads \
        --with-http_ssl_module --with-http_v2_module \
        --with-http_realip_module --with-http_auth_request_module \
        --with-http_addition_module --with-http_sub_module \
        --with-http_dav_module --with-http_slice_module \
        --with-http_gunzip_module --with-http_stub_status_module \
        --prefix="$folder/nginx-prefix" --error-log-path=stderr \
        --builddir="$work/objs" \
        --with-cc-opt="-O1 -g -fPIC -fsanitize=address -fno-omit-frame-pointer -DNGX_DEBUG_PALLOC=1" \
        --with-ld-opt="$work/options.o -fsanitize=address,undefined -Wl,-E -Wl,--exclude-libs,liblatchkey.a" \
        --add-dynamic-module="$root/nginx"
}

# nginx takes liberties that are undefined by the letter, so that part is for
# the module; but an empty string may have no address there as well.
compile() {
    cd "$work/nginx"
    make -s -j"$(nproc)" -f "$work/objs/Makefile" binary
    rm -f "$work/objs/ngx_http_latchkey_module.so"
    make -s -j"$(nproc)" -f "$work/objs/Makefile" modules CFLAGS="$(
        sed -n 's/^CFLAGS = *//p' "$work/objs/Makefile"
    ) -fsanitize=undefined -fno-sanitize=nonnull-attribute"
}

mkdir -p "$work"
[ -d "$work/nginx" ] || fetch
if [ ! -f "$work/objs/Makefile" ] || [ "$root/nginx/config" -nt "$work/objs/Makefile" ]; then
    write_options
    configure >"$work/configure.log" 2>&1 || { tail -20 "$work/configure.log"; exit 1; }
fi
compile
mkdir -p "$folder/nginx-prefix"
cp --remove-destination "$work/objs/nginx" \
    "$work/objs/ngx_http_latchkey_module.so" "$folder/"
"$folder/nginx" -v
