package mountinfo_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

// stackedTable is a table with a stack of n mounts, and one more filesystem behind it.
func stackedTable(t *testing.T, n int) string {
	t.Helper()
	lines := table(20)
	for i := range n {
		lines = append(lines, fmt.Sprintf("%d %d 254:0 /data /data rw,relatime - ext4 /dev/vda rw,discard", 1000+i, 999+i))
	}
	lines = append(lines, "99999 27 0:77 / /volume rw - nfs4 server:/volume rw")
	name := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(name, []byte(text(lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// meter is a kernel that takes longer for each page of a table.
type meter struct {
	reads int
	each  time.Duration
	spent time.Duration
	open  bool
}

func (m *meter) cost() time.Duration {
	if m.open = !m.open; !m.open { // after a read
		m.reads++
		m.spent += m.each
	}
	return m.spent
}

// A table that takes the kernel 8 s of a processor is read little by little, and what is known of it is returned at once.
func TestKnownReadsLittleByLittle(t *testing.T) {
	name := stackedTable(t, 5000)
	synctest.Test(t, func(t *testing.T) {
		kernel := &meter{each: 100 * time.Millisecond}
		reader := mountinfo.Reader{Cost: kernel.cost}
		began := time.Now()
		mounts, err := reader.Known(name, 16<<20)
		cut, ok := errors.AsType[*mountinfo.CutError](err)
		if !ok || !cut.First || cut.Stack.Point != "/data" || cut.Stack.Mounts < 100 || len(mounts) < 120 {
			t.Fatalf("%d mounts, %v", len(mounts), err)
		}
		if kernel.reads > 8 {
			t.Errorf("%d pages of 100 ms were read at once", kernel.reads)
		}
		for range 40 { // who wants all of it spends nothing more, and learns nothing
			file, err := mountinfo.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			before := kernel.reads
			if _, err := reader.ReadFile(file, 16<<20); !errors.As(err, &cut) || kernel.reads > before {
				t.Fatalf("%d pages, %v", kernel.reads-before, err)
			}
		}
		for err != nil {
			time.Sleep(10 * time.Second)
			if mounts, err = reader.Known(name, 16<<20); err != nil && !errors.As(err, &cut) {
				t.Fatal(err)
			}
			if time.Since(began) > time.Hour {
				t.Fatalf("after an hour: %d pages, %v", kernel.reads, err)
			}
		}
		if len(mounts) != 20+5000+1 || mounts[len(mounts)-1].Point != "/volume" {
			t.Errorf("%d mounts", len(mounts))
		}
		if share := float64(kernel.spent) / float64(time.Since(began)); share > 0.03 {
			t.Errorf("%.3f of a processor", share)
		}

		// While it is read again, the mounts behind the stack stay known.
		time.Sleep(time.Minute)
		again, err := reader.Known(name, 16<<20)
		if !errors.As(err, &cut) || cut.First || !cmp.Equal(mounts, again) {
			t.Errorf("%d mounts, %v", len(again), err)
		}
	})
}

// A table of a large node is read at once, whoever asks and however often.
func TestLargeTablesAreReadAtOnce(t *testing.T) {
	name := stackedTable(t, 20_000)
	synctest.Test(t, func(t *testing.T) {
		kernel := &meter{each: 100 * time.Microsecond}
		reader := mountinfo.Reader{Cost: kernel.cost}
		for range 20 {
			file, err := mountinfo.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			mounts, err := reader.ReadFile(file, 16<<20)
			known, knownErr := reader.Known(name, 16<<20)
			if err != nil || knownErr != nil || len(mounts) != 20_021 || len(known) != 20_021 {
				t.Fatalf("%d mounts, %v; %d mounts, %v", len(mounts), err, len(known), knownErr)
			}
		}
	})
}
