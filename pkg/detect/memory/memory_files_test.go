package memory

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func FuzzMemoryFiles(f *testing.F) {
	f.Add("MemTotal:       24683656 kB\nHugePages_Total:       0\n", "low 0\noom_kill 3\n",
		"Node 0, zone   Normal   4948   7734   5889   4143   2469\n", "/dev/sda2 partition 1048572 512 -2\n")
	f.Fuzz(func(t *testing.T, meminfo, counts, buddy, swaps string) {
		if got, err := checkkit.ParseMeminfo(meminfo); (err == nil) == (got == nil) {
			t.Fatalf("%v and %v", got, err)
		}
		if got, err := checkkit.ParseCounts(counts); (err == nil) == (got == nil) {
			t.Fatalf("%v and %v", got, err)
		}
		if got, err := parseBuddyinfo(buddy); (err == nil) == (got == nil) {
			t.Fatalf("%v and %v", got, err)
		}
		if got, err := parseSwaps(swaps); err != nil && got != nil {
			t.Fatalf("%v and %v", got, err)
		}
	})
}
