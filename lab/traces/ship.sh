#!/bin/sh
# Records the shipped kinds of trace anew: a compiler, a compressor, a search, a sort, a database, an interpreter and a
# numeric kernel. Run in the folder where they shall lie.
#
#     ship.sh TLBLAB NAME...      the traces named
#     ship.sh TLBLAB              all of them
#
# Other versions of the programs, and of the libraries under them, give other traces: those in this folder stay as they
# are unless one means to replace them.

set -eu
export LC_ALL=C

tlblab=${1:?usage: ship.sh TLBLAB NAME...}
shift
[ $# -gt 0 ] || set -- cc1 gzip grep sort sqlite perl multiply

here=$(cd "$(dirname "$0")" && pwd)
input=$(mktemp -d)
trap 'rm -rf "$input"' EXIT

# words BYTES SEED: lines of eight words, the same on every machine.
words() {
    awk -v bytes="$1" -v seed="$2" '
        function random(n) { seed = seed * 16807 % 2147483647; return seed % n }
        BEGIN {
            while (done < bytes) {
                for (word = 0; word < 8; word++) {
                    number = random(random(20000) + 1)
                    text = ""
                    for (letter = 0; letter < 3 + number % 6; letter++) {
                        text = text sprintf("%c", 97 + number % 26)
                        number = int(number / 3) + 7 * letter + 11
                    }
                    printf "%s%s", text, word < 7 ? " " : "\n"
                    done += length(text) + 1
                }
            }
        }'
}

capture() {
    "$tlblab" capture --output "$name.tlbt" -- "$@" >"$input/output"
}

words 30000 3 >"$input/tiny"
words 60000 1 >"$input/small"
words 250000 2 >"$input/text"
cat >"$input/rows" <<SQL
create table t(a integer primary key, b text, c int);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 6000)
    insert into t select i, hex(i * 7919 % 100003), i * 31 % 977 from n;
create index tc on t(c);
select c, count(*) from t group by c order by 2 limit 5;
select count(*) from t x join t y on x.c = y.a where x.a % 7 = 0;
SQL

for name; do
    case $name in
    cc1) capture "$(gcc -print-prog-name=cc1)" -quiet -O0 "$here/primes.c" -o /dev/null ;;
    gzip) capture gzip -9 -c "$input/small" ;;
    grep) capture grep -c -E '(abc|xyz).*q[aeiou]' "$input/text" || [ $? -eq 1 ] ;;
    sort) capture sort --parallel=1 "$input/text" ;;
    sqlite) capture sqlite3 :memory: ".read $input/rows" ;;
    perl) capture perl -ane '$n{$_}++ for @F; END { print "$_ $n{$_}\n" for sort keys %n }' "$input/tiny" ;;
    multiply) gcc -O1 -o "$input/multiply" "$here/multiply.c" && capture "$input/multiply" ;;
    *) echo "ship.sh: there is no program $name: see the list in this file" >&2 && exit 2 ;;
    esac
done
