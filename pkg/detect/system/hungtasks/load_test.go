package hungtasks

import (
	"math/rand/v2"
	"testing"
	"time"
)

// kernelLoad is the kernel's calculation in its fixed-point numbers: calc_load in include/linux/sched/loadavg.h.
type kernelLoad uint64

func (l *kernelLoad) update(tasks int) {
	const fixed, exp = 2048, 1884
	active := uint64(tasks) * fixed
	next := uint64(*l)*exp + active*(fixed-exp)
	if active >= uint64(*l) {
		next += fixed - 1
	}
	*l = kernelLoad(next / fixed)
}

// read returns the number in /proc/loadavg: two digits, rounded.
func (l *kernelLoad) read() float64 { return float64((uint64(*l)+2048/200)*100/2048) / 100 }

// A hanging task is never excluded, whatever the load was, whatever else runs, and whenever the load is read.
func TestHungTaskIsNotExcluded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	for range 20_000 {
		start := random.IntN(8 * 2048)
		others := random.IntN(4)
		freq := []time.Duration{loadLongest, 5004 * time.Millisecond, 5001 * time.Millisecond}[random.IntN(3)]
		phase := time.Duration(random.Int64N(int64(freq)))
		elapsed := loadGap + time.Duration(random.Int64N(int64(time.Minute)))
		late := random.IntN(2) // the first update misses the task
		l := kernelLoad(start)
		before := loadReading{time.Hour, l.read()}
		for n, at := 0, phase; at <= elapsed; n, at = n+1, at+freq {
			blocked := 1
			if n < late {
				blocked = 0
			}
			l.update(blocked + random.IntN(others+1))
		}
		now := loadReading{time.Hour + elapsed, l.read()}
		if before.excludes(now) {
			t.Fatalf("excluded: load %.2f, %s later %.2f (updates every %s, the first after %s)", before.load1, elapsed,
				now.load1, freq, phase)
		}
	}
}

func TestQuietNodeIsExcluded(t *testing.T) {
	for name, c := range map[string]struct {
		before, now loadReading
		want        bool
	}{
		"constant":               {loadReading{time.Hour, 0.7}, loadReading{time.Hour + 30*time.Second, 0.7}, true},
		"constant, but high":     {loadReading{time.Hour, 1.1}, loadReading{time.Hour + 30*time.Second, 1.1}, false},
		"falls as if nothing is": {loadReading{time.Hour, 6}, loadReading{time.Hour + 30*time.Second, 3.6}, true},
		"rises":                  {loadReading{time.Hour, 0}, loadReading{time.Hour + 30*time.Second, 0.4}, false},
		"first reading":          {loadReading{}, loadReading{time.Hour, 0.49}, true},
		"first reading, high":    {loadReading{}, loadReading{time.Hour, 0.5}, false},
	} {
		if got := c.before.excludes(c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
