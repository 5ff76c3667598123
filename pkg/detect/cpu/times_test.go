package cpu

import (
	"testing"
)

func FuzzCPUTimes(f *testing.F) {
	f.Add([]byte("cpu  23024 10 8841 1183200 3312 0 402 120 0 0\ncpu0 1 2 3 4 5 6 7 8\nintr 5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		times, err := parseCPUTimes(data)
		if err != nil && times != nil {
			t.Fatal("error and value")
		}
		for cpu, c := range times {
			if c.busy+c.steal > c.total || c.total < c.busy {
				t.Fatalf("%d: %+v", cpu, c)
			}
		}
	})
}
