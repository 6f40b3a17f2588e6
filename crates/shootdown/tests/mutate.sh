#!/bin/sh
# Changes one line of the crate at a time, in a copy, and expects two drivers to notice: the explorer, and the host
# threads. If one of them explored or ran a model of the crate instead of the crate, it would notice nothing.
#
#   crates/shootdown/tests/mutate.sh [directory for the copy [directory for its build]]
#
# Exit code 1 if a mutation survives either driver. A driver that hangs has noticed, too.
set -eu

root=$(cd "$(dirname "$0")/../../.." && pwd)
copy=${1:-$root/target/mutations}
mkdir -p "$copy/tree"
export CARGO_TARGET_DIR="${2:-$copy/build}"

# name | file below crates/shootdown/src | sed script that changes one line
mutations() {
    cat <<'LIST'
PTE-first does not wait|protocol/pte_first.rs|s/Count, Request, Wait, Release/Count, Request, Release/
PTE-first does not flush its own TLB|protocol/pte_first.rs|s/Update, Targets, FlushLocally, Defer, Count/Update, Targets, Defer, Count/
PTE-first leaves lazy CPUs alone|protocol/pte_first.rs|s/FlushLocally, Defer, Count/FlushLocally, Count/
PTE-first keeps its exclusion|protocol/pte_first.rs|s/Request, Wait, Release, Done/Request, Wait, Done/
TLB-first sets no flag|protocol/tlb_first.rs|0,/^    Changing,/s/^    Changing,//
2-phase does not wait until all have stopped|protocol/two_phase.rs|0,/^    WaitStopped,/s/^    WaitStopped,//
optimistic sends no requests|protocol/optimistic.rs|s/Count, Request, Wait, Check/Count, Wait, Check/
a replier acknowledges without flushing|protocol/replier.rs|s/            self.at = At::Flush;$/            self.acknowledge();/
the last but one replier takes over|protocol/replier.rs|s/if left == 0 /if left == 1 /
a taken-over operation is still with the repliers|protocol/requester.rs|s/        self.left = false;$//
an overflow forgets who waits|queue.rs|s/            self.owed.insert(earlier.op);//
an offline CPU accepts requests|queue.rs|s/        self.closed = true;//
a CPU that comes back does not look whether it is stale|lazy.rs|s/, S::TakeStale, S::FlushSpace\]/, S::FlushSpace]/
LIST
}

# The tree as it is, but for builds and history; all of it new to cargo, which goes by time stamps.
fresh() {
    (cd "$root" && tar cf - --exclude=./target --exclude=./.git .) | (cd "$copy/tree" && tar xmf -)
}

explorer() {
    timeout 120 "$CARGO_TARGET_DIR/debug/tlblab" explore --hardware rp3 --limit 300000 --json
}

threads() {
    timeout 120 cargo test -q -p tlbkit-shootdown --test threads
}

build() {
    cargo build -q -p tlblab && cargo test -q -p tlbkit-shootdown --test threads --no-run
}

cd "$copy/tree" && fresh && build
for driver in explorer threads; do
    if ! $driver > "$copy/log" 2>&1; then
        echo "the $driver fail without any mutation; see $copy/log" >&2
        exit 1
    fi
done

mutations > "$copy/list"
survivors=0
while IFS='|' read -r name file change; do
    cp "$root/crates/shootdown/src/$file" "crates/shootdown/src/$file"
    sed -i "$change" "crates/shootdown/src/$file"
    if cmp -s "$root/crates/shootdown/src/$file" "crates/shootdown/src/$file"; then
        echo "stale     $name: nothing to change in $file"
        survivors=$((survivors + 1))
        continue
    fi
    if ! build > "$copy/log" 2>&1; then
        echo "unbuilt   $name; see $copy/log" >&2
        exit 1
    fi
    seen=
    for driver in explorer threads; do
        if $driver < /dev/null > "$copy/log" 2>&1; then
            echo "survived  $name: $driver"
            survivors=$((survivors + 1))
        else
            seen="$seen $driver"
        fi
    done
    echo "seen      $name:$seen"
    cp "$root/crates/shootdown/src/$file" "crates/shootdown/src/$file"
done < "$copy/list"
test "$survivors" -eq 0
