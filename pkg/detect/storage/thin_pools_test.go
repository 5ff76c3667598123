package storage

import (
	"testing"
)

func FuzzThinPools(f *testing.F) {
	f.Add("253:4\t1 4161/16384 812/25600 - rw discard_passdown queue_if_no_space - 1024\t253:2 253:3 128 1024 1 " +
		"skip_block_zeroing\n")
	f.Add("253:4\tFail\t\n253:5\t1 2/1 3/4 - ro x y\t\n")
	f.Fuzz(func(t *testing.T, text string) {
		pools, err := parseThinPools(text)
		if err != nil && pools != nil {
			t.Fatal("error and value")
		}
		for _, p := range pools {
			if p.data.percent() > 100 || p.metadata.percent() > 100 {
				t.Fatalf("%q is %+v", text, p)
			}
			finding, bad := p.evaluate(DefaultThinPoolsSettings())
			finding.Check = "thin-pools"
			if bad && finding.Problem() != nil {
				t.Fatal(finding.Problem())
			}
		}
	})
}
