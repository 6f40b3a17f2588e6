# A client: for each word that it has not met it asks a database for a number; the database writes to a calculator, and that answers.
use strict;
use warnings;

$| = 1;
print "create table t(a integer primary key, b int); with recursive n(i) as (select 1 union all select i + 1 from n where i < 250)",
    " insert into t select i, i * 7919 % 1009 from n;\n";
open my $answers, '<', 'answers' or die $!;
my ($sum, %known) = 0;
while (<STDIN>) {
    for my $word (split) {
        my $number = unpack('%32C*', $word) % 250 + 1;
        if (!exists $known{$number}) {
            print "select b || ' ^ 2 + ' || a from t where a = $number;\n";
            $known{$number} = <$answers>;
        }
        $sum += $known{$number};
    }
}
print STDERR "$sum\n";
