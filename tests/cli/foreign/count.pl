# Counts primes and says nothing; its state is one file, replaced by a rename.
use strict; use warnings; use Time::HiRes qw(sleep);
mkdir "state";
my ($n, $found) = (1, 0);
if (open my $in, "<", "state/primes") { ($n, $found) = split " ", <$in>; close $in; }
while ($n < 90) {
    $n++;
    my $prime = 1;
    for my $d (2 .. int(sqrt $n)) { $prime = 0 if $n % $d == 0; }
    $found += $prime;
    sleep 0.06;
    if ($n % 10 == 0) {
        open my $out, ">", "state/primes.tmp" or die; print $out "$n $found\n"; close $out;
        rename "state/primes.tmp", "state/primes" or die;
    }
}
die "wrong" unless $found == 24;
