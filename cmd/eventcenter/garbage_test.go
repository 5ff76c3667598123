package main

import "testing"

// Garbage waits where there is room for it: in all it is never more than the center may have, unless what is in use already
// is over two thirds of that.
func TestGarbage(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		live, stacks int64
		connections  int
		want         int
	}{
		{50 * mib, mib, 0, usualGarbage},
		{200 * mib, 60 * mib, 10_000, leastGarbage},
		{80 * mib, 40 * mib, 10_000, 259},
		{10 * mib, 40 * mib, 10_000, mostGarbage},
		{500 * mib, mib, 0, leastGarbage},
		{170 * mib, 30 * mib, 10_000, 80},
		{0, 0, 0, mostGarbage},
	} {
		got := garbage(test.live, test.stacks/8, test.stacks, test.connections)
		if got != test.want {
			t.Errorf("%d MiB in use, %d of stacks, %d connections: %d %%, want %d", test.live/mib, test.stacks/mib,
				test.connections, got, test.want)
		}
		total := (test.live+int64(got)*(test.live+test.stacks/8)/100)*8/7 + test.stacks
		if most := int64(memoryAtRest + memoryPerConnection*test.connections); got != leastGarbage && got != usualGarbage && total > most {
			t.Errorf("%d MiB in use, %d connections: %d of %d MiB", test.live/mib, test.connections, total/mib, most/mib)
		}
	}
}
