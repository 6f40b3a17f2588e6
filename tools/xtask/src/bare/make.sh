# Makes a Debian machine in the folder $1: what a clone and a build ask for (git, and the linker of rustup's toolchain), rustup, and
# this machine's toolchain without the components and targets that a command has to install for itself.
set -euo pipefail
debian=$1
home=$debian/root
release=bookworm
packages=git,gcc,libc6-dev

# This machine's settings lead to its mirrors: the files of sources that have the release, and how apt acquires.
mapfile -t sources < <(grep --no-messages --files-with-matches --extended-regexp "(^|[[:space:]])$release([[:space:]]|\$)" \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources)
rm --recursive --force "$debian" "$debian.conf"
apt-config dump | grep --extended-regexp '^Acquire::(http|https|Check)' > "$debian.conf" || true

if ! command -v mmdebstrap >/dev/null && ! command -v debootstrap >/dev/null; then
    apt-get --quiet update
    apt-get --quiet install --yes --no-install-recommends mmdebstrap ||
        apt-get --quiet install --yes --no-install-recommends debootstrap
fi
if command -v mmdebstrap >/dev/null; then
    mmdebstrap --variant=minbase --include="$packages" --aptopt="$debian.conf" "$release" "$debian" "${sources[@]}"
else
    # It takes one mirror: the first that the sources name.
    mirror=
    if [ "${#sources[@]}" -gt 0 ]; then
        mirror=$(grep --no-filename --invert-match '^[[:space:]]*#' "${sources[@]}" |
            grep --only-matching --max-count=1 '[a-z+]*://[^[:space:]]*' | head --lines=1)
    fi
    debootstrap --variant=minbase --include="$packages" "$release" "$debian" ${mirror:+"$mirror"}
fi

cp "$debian.conf" "$debian/etc/apt/apt.conf.d/90machine"
if [ "${#sources[@]}" -gt 0 ]; then
    rm --recursive --force "$debian/etc/apt/sources.list" "$debian/etc/apt/sources.list.d"
    mkdir "$debian/etc/apt/sources.list.d"
    for file in "${sources[@]}"; do
        name=$(basename "$file")
        [ "$name" = sources.list ] && name=machine.list
        cp "$file" "$debian/etc/apt/sources.list.d/$name"
    done
fi
for keys in /etc/apt/keyrings /etc/apt/trusted.gpg.d /usr/share/keyrings; do
    [ -d "$keys" ] || continue
    mkdir --parents "$debian$keys"
    cp --recursive "$keys/." "$debian$keys"
done
cp --dereference /etc/resolv.conf /etc/hosts "$debian/etc"
# Packages of certificates are not there, and a mirror may have one that only this machine trusts.
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
mkdir --parents "$debian/etc/ssl/certs"
[ ! -f "$certificates" ] || cp --dereference "$certificates" "$debian/etc/ssl/certs/ca-certificates.crt"

# rustup is all of these programs: it does what its name says.
cargo=${CARGO_HOME:-$HOME/.cargo}
mkdir --parents "$home/.cargo/bin" "$home/.rustup/toolchains"
cp --dereference "$cargo/bin/rustup" "$home/.cargo/bin/rustup"
for name in cargo cargo-clippy cargo-fmt cargo-miri clippy-driver rustc rustdoc rustfmt; do
    ln --symbolic rustup "$home/.cargo/bin/$name"
done
for name in config config.toml; do
    [ ! -f "$cargo/$name" ] || cp "$cargo/$name" "$home/.cargo/$name"
done

toolchain=$(rustup show active-toolchain | cut --delimiter=' ' --fields=1)
cp --archive "$(rustc --print sysroot)" "$home/.rustup/toolchains/$toolchain"
host=$(rustc -vV | sed --quiet 's/^host: //p')
rustup_there() {
    unshare --mount sh -euc 'mount -t proc proc "$1/proc"; exec chroot "$@"' sh "$debian" \
        /usr/bin/env --ignore-environment HOME=/root PATH=/usr/bin:/bin sh -c '~/.cargo/bin/rustup "$@"' rustup "$@"
}
rustup_there set profile minimal
rustup_there default "$toolchain"
for part in $(rustup_there component list --installed); do
    case $part in
    "cargo-$host" | "rustc-$host" | "rust-std-$host") ;;
    *) rustup_there component remove "$part" ;;
    esac
done
touch "$home/.is-made"
