/* What the shipped trace cc1.tlbt compiles: see README.md. */
int primes(char *sieve, int n) {
    int found = 0;
    for (int i = 2; i < n; i++) {
        if (!sieve[i]) {
            found++;
            for (int j = 2 * i; j < n; j += i) sieve[j] = 1;
        }
    }
    return found;
}
